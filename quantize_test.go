package flashkit_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/allocs"
)

func int8Problem(group int) flashkit.Problem {
	return flashkit.Problem{Batch: 2, Heads: 4, KVHeads: 2, QLen: 3, KVLen: 5, Dim: 96, VDim: 40, Int8Group: group}
}

func TestInt8Problem(t *testing.T) {
	for _, group := range []int{32, 64, 96} {
		p := int8Problem(group)
		a := flashkit.NewArgs(p, flashkit.PassForward)
		require.NoError(t, p.Check(flashkit.PassForward, a))
		require.Equal(t, p, flashkit.ProblemOf(a, p.Band))
		require.Equal(t, [4]int{2, 2, 5, (96 + group - 1) / group}, a.KScale.Shape())
		require.Equal(t, [4]int{2, 2, 5, (40 + group - 1) / group}, a.VScale.Shape())
		require.Equal(t, flashkit.Int8, p.KVType())
		again, err := flashkit.ParseProblem(p.String())
		require.NoError(t, err)
		require.Equal(t, p, again)
		requireProblemError(t, p.Check(flashkit.PassBackward, a), "Int8Group")
		a.KScale = tensor(flashkit.Float16, a.KScale.Shape())
		require.NoError(t, p.Check(flashkit.PassForward, a))
	}
	for _, group := range []int{-1, 1, 16, 48, 95, 97, 128, math.MaxInt} {
		p := int8Problem(group)
		requireProblemError(t, p.Validate(), "Int8Group")
	}
	p := int8Problem(32)
	p.KVDType = flashkit.Float16
	requireProblemError(t, p.Validate(), "KVDType")
	p = int8Problem(64)
	p.Dim, p.VDim = 40, 40
	requireProblemError(t, p.Validate(), "Int8Group")
}

func TestCheckRefusesScales(t *testing.T) {
	for field, change := range map[string]func(p *flashkit.Problem, a *flashkit.Args){
		"KScale.shape": func(_ *flashkit.Problem, a *flashkit.Args) { a.KScale = tensor(flashkit.Float32, [4]int{2, 2, 5, 2}) },
		"VScale.shape": func(_ *flashkit.Problem, a *flashkit.Args) { a.VScale = tensor(flashkit.Float32, [4]int{2, 4, 5, 2}) },
		"KScale.dtype": func(_ *flashkit.Problem, a *flashkit.Args) { a.KScale = tensor(flashkit.BFloat16, a.KScale.Shape()) },
		"KScale":       func(_ *flashkit.Problem, a *flashkit.Args) { a.KScale = flashkit.Tensor{} },
		"VScale":       func(_ *flashkit.Problem, a *flashkit.Args) { a.VScale = flashkit.Tensor{} },
		"K.dtype":      func(_ *flashkit.Problem, a *flashkit.Args) { a.K = tensor(flashkit.Float16, a.K.Shape()) },
		"V.dtype":      func(_ *flashkit.Problem, a *flashkit.Args) { a.V = tensor(flashkit.Bool, a.V.Shape()) },
		"VScale.len":   func(_ *flashkit.Problem, a *flashkit.Args) { a.VScale = a.VScale.WithStrides(20, 10, 3) },
		"KScale.strides[2]": func(_ *flashkit.Problem, a *flashkit.Args) {
			a.KScale = a.KScale.WithStrides(30, 15, -3)
		},
	} {
		p := int8Problem(32)
		a := flashkit.NewArgs(p, flashkit.PassForward)
		change(&p, a)
		requireProblemError(t, p.Check(flashkit.PassForward, a), field)
	}
	p := int8Problem(32)
	a := flashkit.NewArgs(p, flashkit.PassForward)
	p.Int8Group = 0
	requireProblemError(t, p.Check(flashkit.PassForward, a), "K.dtype")
	a.K, a.V = tensor(flashkit.Float32, a.K.Shape()), tensor(flashkit.Float32, a.V.Shape())
	requireProblemError(t, p.Check(flashkit.PassForward, a), "KScale")
}

// Each element is within half a scale of its number, and the scale is the largest magnitude / 127.
func TestQuantizeRows(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, x := range []struct{ dim, groups int }{{96, 1}, {96, 2}, {96, 3}, {40, 2}, {1, 1}, {64, 1}} {
		for _, dtype := range []flashkit.DType{flashkit.Float32, flashkit.Float16} {
			from := flashkit.F32(make([]float32, 2*2*3*x.dim), 2, 2, 3, x.dim)
			for i := range from.Float32s() {
				from.Float32s()[i] = float32(r.NormFloat64())
			}
			to, scale := tensor(flashkit.Int8, [4]int{2, 2, 7, x.dim}), tensor(dtype, [4]int{2, 2, 7, x.groups})
			require.NoError(t, flashkit.QuantizeRows(to, scale, from, []int32{4, 1}, nil))
			scales := flashkit.ToF32(scale)
			size := map[int]int{1: x.dim, 2: 64, 3: 32}[x.groups]
			if x.dim == 40 {
				size = 32
			}
			for b, first := range []int{4, 1} {
				for h := range 2 {
					for i := range 3 {
						row, codes := from.Float32s()[from.Offset(b, h, i):][:x.dim], to.Int8s()[to.Offset(b, h, first+i):]
						for c, v := range row {
							s := scales[scale.Offset(b, h, first+i)+c/size]
							require.InDelta(t, v, float32(codes[c])*s, float64(s)*.5001+1e-3*math.Abs(float64(v)))
						}
					}
				}
			}
			require.Zero(t, to.Int8s()[to.Offset(1, 1, 4)], "a row that was not appended")
		}
	}
}

func TestQuantizeRowsAllocates(t *testing.T) {
	for _, dtype := range []flashkit.DType{flashkit.Float32, flashkit.BFloat16} {
		from, first, pages := tensor(dtype, [4]int{1, 2, 1, 512}), []int32{3}, []int32{1, 0}
		to, scale := tensor(flashkit.Int8, [4]int{2, 2, 2, 512}), tensor(flashkit.Float16, [4]int{2, 2, 2, 16})
		require.Zero(t, allocs.PerRun(20, func() {
			if err := flashkit.QuantizeRows(to, scale, from, first, pages); err != nil {
				t.Fatal(err)
			}
		}))
	}
}

func TestQuantizeRowsEnds(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, x := range []struct {
		row   []float32
		codes []int8
		scale float32
	}{
		{[]float32{0, 0}, []int8{0, 0}, 0},
		{[]float32{127, -63.5}, []int8{127, -64}, 1}, // ties to even
		{[]float32{-127, 62.5}, []int8{-127, 62}, 1},
		{[]float32{nan, 1}, []int8{0, 0}, nan},
		{[]float32{1, inf}, []int8{0, 0}, nan},
		{[]float32{0x1p-149, 0}, []int8{0, 0}, 0}, // a scale below the smallest number
	} {
		to, scale := tensor(flashkit.Int8, [4]int{1, 1, 1, 2}), tensor(flashkit.Float32, [4]int{1, 1, 1, 1})
		require.NoError(t, flashkit.QuantizeRows(to, scale, flashkit.F32(x.row, 1, 1, 1, 2), nil, nil))
		require.Equal(t, x.codes, to.Int8s(), x.row)
		require.Equal(t, math.Float32bits(x.scale)&^(1<<22-1), math.Float32bits(scale.Float32s()[0])&^(1<<22-1), x.row)
	}
	to, scale := tensor(flashkit.Int8, [4]int{1, 1, 1, 2}), tensor(flashkit.Float16, [4]int{1, 1, 1, 1})
	require.NoError(t, flashkit.QuantizeRows(to, scale, flashkit.F32([]float32{1e9, 1}, 1, 1, 1, 2), nil, nil))
	require.True(t, math.IsNaN(float64(flashkit.ToF32(scale)[0])))
	require.Equal(t, []int8{0, 0}, to.Int8s())
}

// Rows appended to pages and to one tensor, in steps or at once, give equal elements.
func TestQuantizeRowsInPages(t *testing.T) {
	from := tensor(flashkit.BFloat16, [4]int{2, 3, 5, 32})
	for i := range from.Uint16s() {
		from.Uint16s()[i] = uint16(i*40503) &^ 0x4000
	}
	whole, scales := tensor(flashkit.Int8, [4]int{2, 3, 5, 32}), tensor(flashkit.Float16, [4]int{2, 3, 5, 1})
	require.NoError(t, flashkit.QuantizeRows(whole, scales, from, nil, nil))
	pool, poolScales := tensor(flashkit.Int8, [4]int{7, 3, 2, 32}), tensor(flashkit.Float16, [4]int{7, 3, 2, 1})
	pages := []int32{5, 2, 0, 1, 6, 3}
	require.NoError(t, flashkit.QuantizeRows(pool, poolScales, from, nil, pages))
	for b := range 2 {
		for h := range 3 {
			for i := range 5 {
				page := int(pages[b*3+i/2])
				require.Equal(t, whole.Int8s()[whole.Offset(b, h, i):][:32], pool.Int8s()[pool.Offset(page, h, i%2):][:32])
				require.Equal(t, scales.Uint16s()[scales.Offset(b, h, i)], poolScales.Uint16s()[poolScales.Offset(page, h, i%2)])
			}
		}
	}
}

func TestQuantizeRowsRefuses(t *testing.T) {
	type call struct {
		to, scale, from flashkit.Tensor
		first, pages    []int32
	}
	for field, change := range map[string]func(c *call){
		"from.dtype":    func(c *call) { c.from = tensor(flashkit.Bool, c.from.Shape()) },
		"to.dtype":      func(c *call) { c.to = tensor(flashkit.Float32, c.to.Shape()) },
		"scale.dtype":   func(c *call) { c.scale = tensor(flashkit.BFloat16, c.scale.Shape()) },
		"to.shape":      func(c *call) { c.to = tensor(flashkit.Int8, [4]int{1, 2, 4, 8}) },
		"scale.shape":   func(c *call) { c.scale = tensor(flashkit.Float32, [4]int{2, 2, 4, 2}) },
		"first.len":     func(c *call) { c.first = []int32{1} },
		"first[1]":      func(c *call) { c.first = []int32{0, 2} },
		"first[0]":      func(c *call) { c.first = []int32{-1, 0} },
		"pages.len":     func(c *call) { c.pages = []int32{0, 1, 1} },
		"pages[1]":      func(c *call) { c.pages = []int32{1, 2} },
		"pages[0]":      func(c *call) { c.pages = []int32{-1, 1} },
		"to.strides[2]": func(c *call) { c.to = c.to.WithStrides(64, 32, 4) },
		"from.len":      func(c *call) { c.from = c.from.WithStrides(48, 24, 9) },
		"scale":         func(c *call) { c.scale = flashkit.F32(c.from.Float32s(), 2, 2, 4, 1) },
	} {
		c := call{tensor(flashkit.Int8, [4]int{2, 2, 4, 8}), tensor(flashkit.Float32, [4]int{2, 2, 4, 1}), tensor(flashkit.Float32, [4]int{2, 2, 3, 8}), nil, nil}
		change(&c)
		requireProblemError(t, flashkit.QuantizeRows(c.to, c.scale, c.from, c.first, c.pages), field)
	}
}
