package flashkit_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/stretchr/testify/require"
)

// names are problems with what String prints for them.
var names = map[string]flashkit.Problem{
	"b1-h8-g2-n128-m512-d64-f32-causal": {1, 8, 2, 128, 512, 64, 64, flashkit.Float32, flashkit.Causal(), 0},
	"b0-h1-g1-n0-m0-d1-f32":             {0, 1, 1, 0, 0, 1, 1, flashkit.Float32, flashkit.Band{}, 0},
	"b1-h1-g1-n2-m3-d4-dv5-f16":         {1, 1, 1, 2, 3, 4, 5, flashkit.Float16, flashkit.Band{}, 0},
	"b1-h1-g1-n2-m3-d4-bf16-topleft":    {1, 1, 1, 2, 3, 4, 4, flashkit.BFloat16, flashkit.Band{}.TopLeft(), 0},

	"b1-h1-g1-n2-m3-d4-f32-causal-topleft":                {1, 1, 1, 2, 3, 4, 4, flashkit.Float32, flashkit.Causal().TopLeft(), 0},
	"b1-h1-g1-n2-m3-d4-f32-window3.0":                     {1, 1, 1, 2, 3, 4, 4, flashkit.Float32, flashkit.Window(3, 0), 0},
	"b1-h1-g1-n2-m3-d4-f32-window0.0":                     {1, 1, 1, 2, 3, 4, 4, flashkit.Float32, flashkit.Window(0, 0), 0},
	"b1-h1-g1-n2-m3-d4-f32-windowinf.2":                   {1, 1, 1, 2, 3, 4, 4, flashkit.Float32, flashkit.Window(flashkit.Unlimited, 2), 0},
	"b1-h1-g1-n2-m3-d4-f32-window5.inf-topleft":           {1, 1, 1, 2, 3, 4, 4, flashkit.Float32, flashkit.Window(5, flashkit.Unlimited).TopLeft(), 0},
	"b1-h1-g1-n2-m3-d4-f32-scale0.5":                      {1, 1, 1, 2, 3, 4, 4, flashkit.Float32, flashkit.Band{}, 0.5},
	"b1-h1-g1-n2-m3-d4-f32-scale100000":                   {1, 1, 1, 2, 3, 4, 4, flashkit.Float32, flashkit.Band{}, 1e5},
	"b1-h1-g1-n2-m3-d4-dv5-bf16-causal-topleft-scale0.12": {1, 1, 1, 2, 3, 4, 5, flashkit.BFloat16, flashkit.Causal().TopLeft(), 0.12},
}

func TestNames(t *testing.T) {
	for name, p := range names {
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
		"b1-h2-g1-n3-m4-d64-f32-causal2":        `unexpected "causal2"`,
		"b1-h2-g1-n3-m4-d64-f32-topleftmost":    `unexpected "topleftmost"`,
		"b1-h2-g1-n3-m4-d64-f32-topleft-causal": `unexpected "causal"`,
		"b1-h2-g1-n3-m4-d64-f32-window3":        "window3: want window{left}.{right}",
		"b1-h2-g1-n3-m4-d64-f32-window3.x":      `window3.x: "x" is not a number in range`,
		"b1-h2-g1-n3-m4-d64-f32-scalex":         "scalex: not a number",
		"b1-h2-g1-n3-m4-d64-f32-windowinf.0":    "not canonical; want b1-h2-g1-n3-m4-d64-f32-causal",
		"b1-h2-g1-n3-m4-d64-dv64-f32":           "not canonical; want b1-h2-g1-n3-m4-d64-f32",
	} {
		_, err := flashkit.ParseProblem(name)
		require.Error(t, err, name)
		require.Equal(t, reason, requireProblemError(t, err, "problem name").Reason)
	}
}

func TestParseProblemRefusesInvalidProblems(t *testing.T) {
	for name, field := range map[string]string{
		"b1-h0-g1-n3-m4-d64-f32":                                                "Heads",
		"b1-h3-g2-n3-m4-d64-f32":                                                "KVHeads",
		"b1-h2-g1-n3-m4-d0-f32":                                                 "Dim",
		"b1-h2-g1-n3-m4-d64-dv0-f32":                                            "VDim",
		"b1-h2-g1-n2147483647-m4-d2147483647-f32":                               "Q",
		"b1-h2-g1-n3-m4-d64-f32-scaleinf":                                       "Scale",
		"b1-h2-g1-n3-m4-d64-f32-scalenan":                                       "Scale",
		"b1-h2-g1-n3-m4-d64-f32-scale0.000000000000000000000000000000000000001": "Scale",
		"b1-h2-g1-n3-m4-d64-f32-scale236000000000000000000000000000000000000":   "Scale",
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
		f.Add(name)
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
