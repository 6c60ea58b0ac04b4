package flashkit_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/stretchr/testify/require"
)

// smallest is the least problem that has a name of its own for each option.
func smallest(change func(p *flashkit.Problem)) flashkit.Problem {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 2, KVLen: 3, Dim: 4, VDim: 4}
	change(&p)
	return p
}

type problemChange = func(p *flashkit.Problem)

// names are changes of a problem by the end of its name, after b1-h1-g1-n2-m3-d4.
var names = map[string]problemChange{
	"-f32":                   func(*flashkit.Problem) {},
	"-dv5-f16":               func(p *flashkit.Problem) { p.VDim, p.DType = 5, flashkit.Float16 },
	"-bf16-topleft":          func(p *flashkit.Problem) { p.DType, p.Band = flashkit.BFloat16, p.Band.TopLeft() },
	"-f32-causal":            func(p *flashkit.Problem) { p.Band = flashkit.Causal() },
	"-f32-window3.0":         func(p *flashkit.Problem) { p.Band = flashkit.Window(3, 0) },
	"-f32-window0.0":         func(p *flashkit.Problem) { p.Band = flashkit.Window(0, 0) },
	"-f32-windowinf.2":       func(p *flashkit.Problem) { p.Band = flashkit.Window(flashkit.Unlimited, 2) },
	"-f32-shift7":            func(p *flashkit.Problem) { p.Band = p.Band.Shift(7) },
	"-f32-causal-shift-7":    func(p *flashkit.Problem) { p.Band = flashkit.Causal().Shift(-9).Shift(2) },
	"-f32-scale0.5":          func(p *flashkit.Problem) { p.Scale = .5 },
	"-f32-scale100000":       func(p *flashkit.Problem) { p.Scale = 1e5 },
	"-f32-softcap30":         func(p *flashkit.Problem) { p.Score.Softcap = 30 },
	"-f32-alibi":             func(p *flashkit.Problem) { p.Score.ALiBi = true },
	"-f32-bias-mask":         func(p *flashkit.Problem) { p.Score.Bias, p.Score.Mask = true, true },
	"-f32-sink":              func(p *flashkit.Problem) { p.Score.Sink = true },
	"-f32-dropout0.1":        func(p *flashkit.Problem) { p.Score.Dropout = .1 },
	"-f32-dropout0.5-origin": func(p *flashkit.Problem) { p.Score.Dropout, p.Score.Origin = .5, true },
	"-f32-ragged":            func(p *flashkit.Problem) { p.Ragged = true },
	"-f32-ragged-page16":     func(p *flashkit.Problem) { p.Ragged, p.Page = true, 16 },
	"-f32-carry":             func(p *flashkit.Problem) { p.Carry = true },
	"-f32-kvf16":             func(p *flashkit.Problem) { p.KVDType = flashkit.Float16 },
	"-f32-kvbf16-causal":     func(p *flashkit.Problem) { p.KVDType, p.Band = flashkit.BFloat16, flashkit.Causal() },

	"-f32-window5.inf-topleft": func(p *flashkit.Problem) { p.Band = flashkit.Window(5, flashkit.Unlimited).TopLeft() },
	"-dv5-bf16-causal-topleft-shift-3-scale0.12-softcap2.5-alibi-bias-mask-sink-dropout0.25-origin-ragged-page1-carry": func(p *flashkit.Problem) {
		*p = flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 2, KVLen: 3, Dim: 4, VDim: 5, DType: flashkit.BFloat16,
			Band: flashkit.Causal().TopLeft().Shift(-3), Scale: .12,
			Score:  flashkit.Score{Softcap: 2.5, ALiBi: true, Bias: true, Mask: true, Sink: true, Dropout: .25, Origin: true},
			Ragged: true, Page: 1, Carry: true}
	},
}

func TestNames(t *testing.T) {
	for name, change := range names {
		name, p := "b1-h1-g1-n2-m3-d4"+name, smallest(change)
		require.Equal(t, name, p.String())
		got, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		require.Equal(t, p, got)
	}
}

func TestNamesRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789-."
	for range 5000 {
		p := randomProblem(r)
		name := p.String()
		got, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		require.Equal(t, p, got, name)
		require.Empty(t, strings.Trim(name, alphabet))
	}
}

func TestNameOfMinusZeroScale(t *testing.T) {
	p := small()
	p.Scale = float32(math.Copysign(0, -1))
	got, err := flashkit.ParseProblem(p.String())
	require.NoError(t, err)
	require.True(t, p == got) // as map keys are compared
}

func TestParseProblemRefuses(t *testing.T) {
	const dims, short = "b1-h2-g1-n3-m4-d64", "b1-h2-g1-n3-m4-"
	for _, name := range []string{
		// Another spelling of a valid problem.
		short + "d64-dv64-f32", dims + "-f32-windowinf.0", dims + "-f32-windowinf.inf", dims + "-f32-scale0.50",
		dims + "-f32-scale.5", dims + "-f32-scale1e5", dims + "-f32-scale1e-5", dims + "-f32-scale+1", dims + "-f32-scale0x1p2",
		dims + "-f32-scale1_0", dims + "-f32-scale0", dims + "-f32-scale0.1000000001", dims + "-f32-scale0." + strings.Repeat("0", 60) + "1",
		"b01-h2-g1-n3-m4-d64-f32", "b+1-h2-g1-n3-m4-d64-f32", "b1-h2-g1-n3-m4-d064-f32", dims + "-f32-window03.0",
		"B1-H2-G1-N3-M4-D64-F32", dims + "-F32", dims + "-f32-CAUSAL", dims + "-f32-windowInf.3", dims + "-f32-topleft-causal",
		dims + "-f32-scale2-causal", "h2-b1-g1-n3-m4-d64-f32", " " + dims + "-f32", dims + "-f32 ", dims + "-f32\n",
		// Unfinished, or with something over.
		"", "-", "b", "b1", dims, dims + "-", dims + "-f32-", "-" + dims + "-f32", dims + "-f32-causal-", dims + "--f32",
		"b-h2-g1-n3-m4-d64-f32", short + "f32", short + "dv64-f32", short + "d64-dv-f32", dims + "-f32-window", dims + "-f32-window3",
		dims + "-f32-window3.", dims + "-f32-window.3", dims + "-f32-window3.0.0", dims + "-f32-scale", dims + "-f32-causal-causal",
		dims + "-f32-causal-window3.0", dims + "-f32-causal2", dims + "-f32-causalwindow3.0", dims + "-f32-topleft2",
		dims + "-f32-topleft-topleft", dims + "-f32-what", dims + "-f32-f32", dims + "-f64", dims + "-f32-scale1-scale1",
		dims + "-f32-kv", dims + "-f32-kvf32", dims + "-f32-causal-kvbf16", dims + "-kvbf16-f32", dims + "-f32-kvbf16-kvbf16", dims + "-bf16-kvbf32",
		// Numbers out of range.
		"b99999999999999999999-h2-g1-n3-m4-d64-f32", "b9223372036854775808-h2-g1-n3-m4-d64-f32", "b1.0-h2-g1-n3-m4-d64-f32",
		dims + "-f32-window9223372036854775808.0", dims + "-f32-window-2.0", dims + "-f32-scale1" + strings.Repeat("0", 39),
	} {
		_, err := flashkit.ParseProblem(name)
		require.Error(t, err, name)
		requireProblemError(t, err, "problem name")
	}
}

func TestParseProblemSaysWhatIsWrong(t *testing.T) {
	for name, reason := range map[string]string{
		"b1-h2":                                 "want g{number}",
		"b1-hx-g1-n3-m4-d64-f32":                `hx: "x" is not a number in range`,
		"b1-h2-g1-n3-m4-d64-f8":                 `dtype "f8": must be f32, f16 or bf16`,
		"b1-h2-g1-n3-m4-d64-f32-kvf8":           `kvf8: must be f16 or bf16`,
		"b1-h2-g1-n3-m4-d64-f32-kvf32":          "not canonical; want b1-h2-g1-n3-m4-d64-f32",
		"b1-h2-g1-n3-m4-d64-f32-causal2":        `unexpected "causal2"`,
		"b1-h2-g1-n3-m4-d64-f32-topleftmost":    `unexpected "topleftmost"`,
		"b1-h2-g1-n3-m4-d64-f32-topleft-causal": `unexpected "causal"`,
		"b1-h2-g1-n3-m4-d64-f32-window3":        "window3: want window{left}.{right}",
		"b1-h2-g1-n3-m4-d64-f32-window3.x":      `window3.x: "x" is not a number in range`,
		"b1-h2-g1-n3-m4-d64-f32-scalex":         "scalex: not a number",
		"b1-h2-g1-n3-m4-d64-f32-windowinf.0":    "not canonical; want b1-h2-g1-n3-m4-d64-f32-causal",
		"b1-h2-g1-n3-m4-d64-f32-shift":          `shift: "" is not a number in range`,
		"b1-h2-g1-n3-m4-d64-f32-shift-x":        `shiftx: "x" is not a number in range`,
		"b1-h2-g1-n3-m4-d64-f32-shift-0":        "not canonical; want b1-h2-g1-n3-m4-d64-f32",
		"b1-h2-g1-n3-m4-d64-f32-softcapx":       "softcapx: not a number",
		"b1-h2-g1-n3-m4-d64-f32-sink-mask":      `unexpected "mask"`,
		"b1-h2-g1-n3-m4-d64-f32-ragged-pagex":   `pagex: "x" is not a number in range`,
		"b1-h2-g1-n3-m4-d64-dv64-f32":           "not canonical; want b1-h2-g1-n3-m4-d64-f32",
	} {
		_, err := flashkit.ParseProblem(name)
		require.Error(t, err, name)
		require.Equal(t, reason, requireProblemError(t, err, "problem name").Reason)
	}
}

// A long name, or a long part of it, gives a short error.
func TestParseProblemClipsNames(t *testing.T) {
	long := strings.Repeat("x", 50000)
	parts := strings.Split("b1-h1-g1-n1-m1-d1-f32-causal", "-")
	for i := range parts {
		for _, part := range []string{long, parts[i] + long, parts[i] + "-" + long, parts[i][:1] + strings.Repeat("9", 50000)} {
			name := strings.Join(append(append(slices.Clone(parts[:i]), part), parts[i+1:]...), "-")
			_, err := flashkit.ParseProblem(name)
			require.Error(t, err)
			require.Less(t, len(err.Error()), 1000)
		}
	}
}

func TestParseProblemRefusesInvalidProblems(t *testing.T) {
	for name, field := range map[string]string{
		"b1-h0-g1-n3-m4-d64-f32":                                                "Heads",
		"b1-h3-g2-n3-m4-d64-f32":                                                "KVHeads",
		"b1-h2-g1-n3-m4-d0-f32":                                                 "Dim",
		"b1-h2-g1-n3-m4-d64-dv0-f32":                                            "VDim",
		"b1-h2-g1-n2147483647-m4-d2147483647-f32":                               "Q",
		"b1-h2-g1-n3-m4-d64-bf16-kvbf16":                                        "KVDType",
		"b1-h2-g1-n3-m4-d64-f16-kvbf16":                                         "KVDType",
		"b1-h2-g1-n3-m4-d64-f32-scaleinf":                                       "Scale",
		"b1-h2-g1-n3-m4-d64-f32-scalenan":                                       "Scale",
		"b1-h2-g1-n3-m4-d64-f32-scale0.000000000000000000000000000000000000001": "Scale",
		"b1-h2-g1-n3-m4-d64-f32-scale236000000000000000000000000000000000000":   "Scale",
		fmt.Sprint("b1-h2-g1-n3-m4-d64-f32-shift", math.MaxInt/4):               "Band.shift",
		"b1-h2-g1-n3-m4-d64-f32-softcapnan":                                     "Score.Softcap",
		"b1-h2-g1-n3-m4-d64-f32-softcapinf":                                     "Score.Softcap",
		"b1-h2-g1-n3-m4-d64-f32-softcap-3":                                      "problem name",
		"b1-h2-g1-n3-m4-d64-f32-dropout1":                                       "Score.Dropout",
		"b1-h2-g1-n3-m4-d64-f32-dropoutnan":                                     "Score.Dropout",
		"b1-h2-g1-n3-m4-d64-f32-page16":                                         "Page",
		"b1-h2-g1-n3-m4-d64-f32-causal-scaleInf":                                "Scale",
		"b1-h2-g1-n3-m4-d64-f32-topleft-scale+inf":                              "Scale",
	} {
		p, err := flashkit.ParseProblem(name)
		require.Error(t, err, name)
		requireProblemError(t, err, field)
		require.Zero(t, p, name)
	}
}

func FuzzParseProblem(f *testing.F) {
	for name := range names {
		f.Add("b1-h1-g1-n2-m3-d4" + name)
	}
	f.Add("b1-h2-g1-n3-m4-d64-f32-causalx-window1.2-scale1e-5")
	f.Fuzz(func(t *testing.T, name string) {
		p, err := flashkit.ParseProblem(name)
		if err != nil {
			var wrong *flashkit.ProblemError
			require.True(t, errors.As(err, &wrong), "%T", err)
			require.Zero(t, p)
			return
		}
		require.NoError(t, p.Validate())
		require.Equal(t, name, p.String())
	})
}
