package flashkit_test

import (
	"cmp"
	"math"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/stretchr/testify/require"
)

// small is a valid problem in which no two tensors have the same shape and no
// dimension has size 1. Tests change a field of it at a time.
func small() flashkit.Problem {
	return flashkit.Problem{Batch: 2, Heads: 4, KVHeads: 2, QLen: 3, KVLen: 5, Dim: 6, VDim: 7}
}

// randomProblem returns a valid problem with dims from 0 or 1 to absurd.
func randomProblem(r *rand.Rand) flashkit.Problem {
	dim := func(least int) int {
		n := r.IntN(8)
		if r.IntN(4) == 0 {
			n = r.Int() >> r.IntN(bits.UintSize)
		}
		return max(least, n)
	}
	side := func() int {
		return [...]int{flashkit.Unlimited, flashkit.Unlimited, 0, dim(0), math.MaxInt}[r.IntN(5)]
	}
	for {
		p := flashkit.Problem{
			Batch: dim(0), KVHeads: dim(1), QLen: dim(0), KVLen: dim(0), Dim: dim(1), VDim: dim(1),
			DType: flashkit.DType(r.IntN(3)), Band: flashkit.Window(side(), side()),
		}
		p.Heads = p.KVHeads * (1 + r.IntN(4))
		if r.IntN(2) == 0 {
			p.VDim = p.Dim
		}
		if r.IntN(3) == 0 {
			p.Band = p.Band.TopLeft()
		}
		if r.IntN(2) == 0 {
			randomFeatures(&p, r)
		}
		if r.IntN(2) == 0 {
			p.Scale = math.Float32frombits(r.Uint32())
		}
		if p.Validate() == nil {
			return p
		}
	}
}

func randomFeatures(p *flashkit.Problem, r *rand.Rand) {
	odd := func() bool { return r.IntN(2) == 0 }
	if odd() {
		p.Band = p.Band.Shift((1 - 2*r.IntN(2)) * (r.Int() >> r.IntN(bits.UintSize)))
	}
	p.Score = flashkit.Score{ALiBi: odd(), Bias: odd(), Mask: odd(), Sink: odd()}
	if odd() {
		p.Score.Softcap = math.Float32frombits(r.Uint32())
	}
	if odd() {
		p.Score.Dropout = r.Float32()
		p.Score.Origin = p.Score.Dropout != 0 && odd()
	}
	if p.Ragged, p.Carry = odd(), odd(); p.Ragged && odd() {
		p.Page = 1 + r.IntN(300)
	}
	if p.DType == flashkit.Float32 {
		p.KVDType = flashkit.DType(r.IntN(3))
	}
}

func requireProblemError(t *testing.T, err error, field string) *flashkit.ProblemError {
	t.Helper()
	var wrong *flashkit.ProblemError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, field, wrong.Field, "%v", err)
	require.NotEmpty(t, wrong.Reason)
	require.Contains(t, err.Error(), field+" = "+wrong.Value)
	return wrong
}

const (
	tooLong = math.MaxInt / 2 // as a length, too many bytes for any tensor
	// side is the least power of two whose square, times the bytes of a
	// float32, is more than an int can count.
	side = 1 << (bits.UintSize/2 - 1)
)

type problem = flashkit.Problem

// invalid are changes that make a valid problem invalid, each with the field
// that must be named.
var invalid = []struct {
	name, field string
	change      func(p *problem)
}{
	{"negative batch", "Batch", func(p *problem) { p.Batch = -1 }},
	{"no heads", "Heads", func(p *problem) { p.Heads = 0 }},
	{"negative heads", "Heads", func(p *problem) { p.Heads = -4 }},
	{"no kv heads", "KVHeads", func(p *problem) { p.KVHeads = 0 }},
	{"negative kv heads", "KVHeads", func(p *problem) { p.KVHeads = -2 }},
	{"negative queries", "QLen", func(p *problem) { p.QLen = -1 }},
	{"negative keys", "KVLen", func(p *problem) { p.KVLen = math.MinInt }},
	{"no dim", "Dim", func(p *problem) { p.Dim = 0 }},
	{"negative dim", "Dim", func(p *problem) { p.Dim = -8 }},
	{"no value dim", "VDim", func(p *problem) { p.VDim = 0 }},
	{"negative value dim", "VDim", func(p *problem) { p.VDim = -8 }},
	{"kv heads do not divide", "KVHeads", func(p *problem) { p.KVHeads = 3 }},
	{"more kv heads than heads", "KVHeads", func(p *problem) { p.KVHeads = 8 }},
	{"unknown dtype", "DType", func(p *problem) { p.DType = 3 }},
	{"keys of bools", "KVDType", func(p *problem) { p.KVDType = flashkit.Bool }},
	{"keys of an unknown type", "KVDType", func(p *problem) { p.KVDType = 77 }},
	{"f16 with other keys", "KVDType", func(p *problem) { p.DType, p.KVDType = flashkit.Float16, flashkit.BFloat16 }},
	{"the type of keys said twice", "KVDType", func(p *problem) { p.DType, p.KVDType = flashkit.BFloat16, flashkit.BFloat16 }},
	{"last dtype", "DType", func(p *problem) { p.DType = 255 }},
	{"bool dtype", "DType", func(p *problem) { p.DType = flashkit.Bool }},
	{"far shift", "Band.shift", func(p *problem) { p.Band = p.Band.Shift(math.MaxInt/8 + 1) }},
	{"far back shift", "Band.shift", func(p *problem) { p.Band = p.Band.Shift(math.MinInt / 2) }},
	{"negative softcap", "Score.Softcap", func(p *problem) { p.Score.Softcap = -1 }},
	{"NaN softcap", "Score.Softcap", func(p *problem) { p.Score.Softcap = float32(math.NaN()) }},
	{"infinite softcap", "Score.Softcap", func(p *problem) { p.Score.Softcap = float32(math.Inf(1)) }},
	{"denormal softcap", "Score.Softcap", func(p *problem) { p.Score.Softcap = 1e-40 }},
	{"negative dropout", "Score.Dropout", func(p *problem) { p.Score.Dropout = -.1 }},
	{"all dropped", "Score.Dropout", func(p *problem) { p.Score.Dropout = 1 }},
	{"an origin of nothing", "Score.Origin", func(p *problem) { p.Score.Dropout, p.Score.Origin = 0, true }},
	{"NaN dropout", "Score.Dropout", func(p *problem) { p.Score.Dropout = float32(math.NaN()) }},
	{"negative page", "Page", func(p *problem) { p.Ragged, p.Page = true, -1 }},
	{"pages of equal lengths", "Page", func(p *problem) { p.Page = 16 }},
	{"a page too large to round up to", "Page", func(p *problem) { p.Ragged, p.Page = true, math.MaxInt }},
	{"a page that overflows int in bytes", "Page", func(p *problem) { p.Ragged, p.Page = true, math.MaxInt/8+1 }},
	{"a page for each of many sequences", "Page", func(p *problem) { p.Ragged, p.Page, p.Batch, p.KVLen = true, side, side, 0 }},
	{"left of -2", "Band.left", func(p *problem) { p.Band = flashkit.Window(-2, 0) }},
	{"left of MinInt", "Band.left", func(p *problem) { p.Band = flashkit.Window(math.MinInt, 0) }},
	{"right of -2", "Band.right", func(p *problem) { p.Band = flashkit.Window(0, -2) }},
	{"NaN scale", "Scale", func(p *problem) { p.Scale = float32(math.NaN()) }},
	{"infinite scale", "Scale", func(p *problem) { p.Scale = float32(math.Inf(1)) }},
	{"minus infinite scale", "Scale", func(p *problem) { p.Scale = float32(math.Inf(-1)) }},
	{"negative scale", "Scale", func(p *problem) { p.Scale = -1e-45 }},
	{"denormal scale", "Scale", func(p *problem) { p.Scale = math.SmallestNonzeroFloat32 }},
	{"largest denormal scale", "Scale", func(p *problem) { p.Scale = below(0x1p-126) }},
	{"infinite to the base 2", "Scale", func(p *problem) { p.Scale = math.MaxFloat32 }},
	{"just infinite to the base 2", "Scale", func(p *problem) { p.Scale = -below(-largestScale) }},

	{"Q too large", "Q", func(p *problem) { p.QLen = tooLong }},
	{"Q too large, no batch", "Q", func(p *problem) { p.Batch, p.QLen = 0, tooLong }},
	{"Q too large, no queries", "Q", func(p *problem) { p.QLen, p.Heads = 0, tooLong-1 }},
	{"K too large", "K", func(p *problem) { p.KVLen = tooLong }},
	{"K too large, no batch", "K", func(p *problem) { p.Batch, p.KVLen = 0, tooLong }},
	{"K too large, no queries", "K", func(p *problem) { p.QLen, p.KVLen = 0, tooLong }},
	{"V too large", "V", func(p *problem) { p.VDim = tooLong }},
	{"V too large, no keys", "V", func(p *problem) { p.KVLen, p.VDim = 0, tooLong }},
	{"O too large", "O", func(p *problem) { *p = long(1, 1) }},
	{"O too large, no batch", "O", func(p *problem) { *p = long(0, 1) }},
	{"O too large, no keys", "O", func(p *problem) { *p = long(1, 0) }},
	{"too many scores", "the scores", func(p *problem) { *p = lengths(side, side, flashkit.Band{}) }},
	{"too many scores, no batch", "the scores", func(p *problem) { *p = lengths(side, side, flashkit.Band{}); p.Batch = 0 }},
}

// long returns a problem whose O alone is too large.
func long(batch, keys int) problem {
	return problem{Batch: batch, Heads: 1, KVHeads: 1, QLen: side, KVLen: keys, Dim: 1, VDim: side}
}

// largestScale is the last float32 whose product with log2(e) is one.
var largestScale = float32(math.MaxFloat32 / math.Log2E)

// below returns the next smaller number.
func below(x float32) float32 { return math.Nextafter32(x, float32(math.Inf(-1))) }

// Validate refuses a scale unless it is a normal number in base 2, as kernels need it.
func TestScaleIsNormal(t *testing.T) {
	check := func(scale float32) {
		p := small()
		p.Scale = scale
		base2 := float64(float32(p.SoftmaxScale() * math.Log2E))
		normal := scale >= 0x1p-126 && base2 >= 0x1p-126 && base2 <= math.MaxFloat32
		if p.Validate() != nil {
			require.False(t, normal, "%g", scale)
			require.NotZero(t, scale)
			return
		}
		require.True(t, normal || scale == 0, "%g", scale)
		parsed, err := flashkit.ParseProblem(p.String())
		require.NoError(t, err)
		if scale != 0 {
			require.Equal(t, p, parsed)
		}
	}
	for _, x := range []float32{0, 1, 0x1p-126, below(0x1p-126), largestScale, below(largestScale), -below(-largestScale), 1e-39, 8e-39, 2.4e38} {
		check(x)
		check(-x)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20000 {
		check(math.Float32frombits(r.Uint32()))
	}
}

func TestValidateRefuses(t *testing.T) {
	for _, c := range invalid {
		t.Run(c.name, func(t *testing.T) {
			if c.field == "the scores" && bits.UintSize == 32 {
				t.Skip("no tensors in range have that many scores")
			}
			p := small()
			c.change(&p)
			requireProblemError(t, p.Validate(), c.field)
			requireProblemError(t, p.Check(flashkit.PassForward, nil), c.field)
			requireProblemError(t, p.Check(flashkit.PassBackward, nil), c.field)
		})
	}
}

func TestValidateNamesTheFirstFieldAtFault(t *testing.T) {
	p := flashkit.Problem{Batch: -1, Heads: -1}
	requireProblemError(t, p.Validate(), "Batch")
	requireProblemError(t, flashkit.Problem{}.Validate(), "Heads")
}

func TestValidateAccepts(t *testing.T) {
	negativeZero := float32(math.Copysign(0, -1))
	for name, change := range map[string]func(p *flashkit.Problem){
		"small":         func(*flashkit.Problem) {},
		"no batch":      func(p *flashkit.Problem) { p.Batch = 0 },
		"no queries":    func(p *flashkit.Problem) { p.QLen = 0 },
		"no keys":       func(p *flashkit.Problem) { p.KVLen = 0 },
		"one kv head":   func(p *flashkit.Problem) { p.KVHeads = 1 },
		"least scale":   func(p *flashkit.Problem) { p.Scale = 0x1p-126 },
		"largest scale": func(p *flashkit.Problem) { p.Scale = largestScale },
		"-0 scale":      func(p *flashkit.Problem) { p.Scale = negativeZero },
		"widest window": func(p *flashkit.Problem) { p.Band = flashkit.Window(math.MaxInt, math.MaxInt) },
		"narrow window": func(p *flashkit.Problem) { p.Band = flashkit.Window(0, 0).TopLeft() },
		"longest length": func(p *flashkit.Problem) {
			*p = lengths(math.MaxInt/4, 1, flashkit.Band{})
			p.Batch = 0
		},
	} {
		p := small()
		change(&p)
		require.NoError(t, p.Validate(), name)
	}
	p := lengths(math.MaxInt/4+1, 1, flashkit.Band{})
	requireProblemError(t, p.Validate(), "Q")
}

func TestSoftmaxScale(t *testing.T) {
	p := small()
	p.Dim = 16
	require.Equal(t, 0.25, p.SoftmaxScale())
	p.Scale = 3
	require.Equal(t, 3.0, p.SoftmaxScale())
}

func TestDType(t *testing.T) {
	for want, dtype := range map[string]flashkit.DType{"f32": flashkit.Float32, "f16": flashkit.Float16, "bf16": flashkit.BFloat16} {
		require.Equal(t, want, dtype.String())
		got, err := flashkit.ParseDType(want)
		require.NoError(t, err)
		require.Equal(t, dtype, got)
	}
	for _, s := range []string{"", "F32", "f64", "unknown"} {
		_, err := flashkit.ParseDType(s)
		requireProblemError(t, err, "DType")
	}
	require.Equal(t, "unknown", flashkit.DType(9).String())
	require.Equal(t, []int{4, 2, 2}, []int{flashkit.Float32.Size(), flashkit.Float16.Size(), flashkit.BFloat16.Size()})
}

// The claimed size of a page pool cannot wrap around into a smaller problem.
func TestProblemOfHugePages(t *testing.T) {
	const page = math.MaxInt/8 + 1
	pool := flashkit.F32(make([]float32, 1), 1, 1, page, 1).WithStrides(0, 0, 0)
	args := &flashkit.Args{
		Q: flashkit.F32(make([]float32, 1), 1, 1, 1, 1), K: pool, V: pool, O: flashkit.F32(make([]float32, 1), 1, 1, 1, 1),
		Seqs: &flashkit.Sequences{KVLens: []int32{1}, Pages: make([]int32, 16)},
	}
	p := flashkit.ProblemOf(args, flashkit.Band{})
	require.Equal(t, math.MaxInt, p.KVLen)
	requireProblemError(t, p.Check(flashkit.PassForward, args), "K")
}

// Texts put the symbol of a number in place of it.
func TestParametersNameTheirNumbers(t *testing.T) {
	for _, x := range flashkit.Parameters() {
		_, isBool := x.Of(new(flashkit.Problem)).(*bool)
		require.Equal(t, isBool, x.Value == "", x.Name)
		require.Regexp(t, `\b`+x.Value+`\b`, x.About)
		require.Equal(t, x.Name, cmp.Or(x.Feature.String(), "scale"))
	}
}

// A feature's tensors say whether it depends on heads or on pairs.
func TestScopesAgreeWithTensors(t *testing.T) {
	plain := flashkit.Problem{Batch: 2, Heads: 3, KVHeads: 1, QLen: 5, KVLen: 7, Dim: 11, VDim: 13}
	for _, x := range flashkit.Parameters() {
		require.NotZero(t, x.Scope, x.Name)
		p, want := plain, flashkit.Scope(0)
		switch field := x.Of(&p).(type) {
		case *bool:
			*field = true
		case *float32:
			*field = .5
		case *int:
			*field = 1
		}
		for _, a := range flashkit.Arguments() {
			switch {
			case a.Role(&plain, flashkit.PassForward) != 0 || a.Role(&p, flashkit.PassForward) == 0:
			case a.Shape(&p)[1] == 1: // of KV heads
				require.Equal(t, flashkit.ScopeKey, x.Scope, a.Name)
			case a.Shape(&p) == [4]int{2, 3, 5, 7}:
				want |= flashkit.ScopePair
			default:
				require.Equal(t, 3, a.Shape(&p)[1], a.Name)
				want |= flashkit.ScopeHead
			}
		}
		require.Equal(t, want, x.Scope&(flashkit.ScopeHead|flashkit.ScopePair), x.Name)
	}
}
