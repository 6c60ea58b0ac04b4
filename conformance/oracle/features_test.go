package oracle_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
)

// addFeatures gives a random problem each feature that has a backward pass by chance.
func addFeatures(r *rand.Rand, p *flashkit.Problem, in *oracle.Inputs) {
	odd := func() bool { return r.IntN(2) == 0 }
	noise := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = r.NormFloat64()
		}
		return x
	}
	pairs := func() oracle.Pairs {
		shape := [4]int{p.Batch, p.Heads, p.QLen, p.KVLen}
		for d := range 3 {
			if odd() {
				shape[d] = 1
			}
		}
		return oracle.Pairs{X: noise(shape[0] * shape[1] * shape[2] * shape[3]), Shape: shape}
	}
	if odd() {
		p.Score.Softcap = 1 + r.Float32()
	}
	if p.Score.Bias = odd(); p.Score.Bias {
		in.Bias = pairs()
	}
	if p.Score.Mask = odd(); p.Score.Mask {
		in.Mask = pairs()
		for i, x := range in.Mask.X {
			in.Mask.X[i] = math.Max(0, math.Floor(x+1.5))
		}
	}
	if p.Score.ALiBi = odd(); p.Score.ALiBi {
		in.Slopes = noise(p.Heads)
		if odd() {
			in.Slopes = noise(p.Batch * p.Heads)
		}
	}
	if p.Score.Sink = odd(); p.Score.Sink {
		in.Sink = noise(p.Heads)
	}
	if odd() {
		p.Score.Dropout, in.Seed = .25, r.Uint64()
	}
	if odd() {
		p.Band = p.Band.Shift(r.IntN(5) - 2)
	}
	if p.Ragged = odd(); p.Ragged {
		for range p.Batch {
			in.QLens, in.KVLens = append(in.QLens, r.IntN(p.QLen+1)), append(in.KVLens, r.IntN(p.KVLen+1))
		}
	}
}

// The gradients match finite differences with all features.
func TestGradientsOfFeatures(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		p, in := random(r)
		addFeatures(r, &p, &in)
		g := oracle.Backward(p, in)
		for _, x := range []struct{ of, gradient []float64 }{{in.Q, g.DQ}, {in.K, g.DK}, {in.V, g.DV}, {in.Bias.X, g.DBias}, {in.Sink, g.DSink}} {
			requireClose(t, slopes(p, in, x.of), x.gradient, 1e-7, p)
		}
	}
}

// By hand, in the problem of twoByTwo: scores 0 and ln 3 in row 0, 0 and 2 ln 3 in row 1.
func TestFeaturesByHand(t *testing.T) {
	ln3 := math.Log(3)
	for name, c := range map[string]struct {
		change func(p *flashkit.Problem, in *oracle.Inputs)
		o      []float64 // its first column
		lse    []float64
	}{
		"bias": {func(p *flashkit.Problem, in *oracle.Inputs) {
			p.Score.Bias, in.Bias = true, oracle.Pairs{X: []float64{0, -ln3}, Shape: [4]int{1, 1, 1, 2}}
		}, []float64{6, 7}, []float64{math.Log(2), math.Log(4)}},
		"mask": {func(p *flashkit.Problem, in *oracle.Inputs) {
			p.Score.Mask, in.Mask = true, oracle.Pairs{X: []float64{1, 0, 0, 0}, Shape: [4]int{1, 1, 2, 2}}
		}, []float64{4, 0}, []float64{0, math.Inf(-1)}},
		"alibi": {func(p *flashkit.Problem, in *oracle.Inputs) {
			p.Score.ALiBi, in.Slopes = true, []float64{ln3}
		}, []float64{6, 8 - 4./28}, []float64{math.Log(2), math.Log(28. / 3)}},
		"sink": {func(p *flashkit.Problem, in *oracle.Inputs) {
			p.Score.Sink, in.Sink = true, []float64{math.Log(4)}
		}, []float64{3.5, 76. / 14}, []float64{math.Log(8), math.Log(14)}},
		"softcap": {func(p *flashkit.Problem, in *oracle.Inputs) {
			p.Score.Softcap = float32(ln3)
		}, []float64{4 + 4/(1+math.Exp(-float64(float32(ln3))*math.Tanh(ln3/float64(float32(ln3))))), 4 + 4/(1+math.Exp(-float64(float32(ln3))*math.Tanh(2*ln3/float64(float32(ln3)))))}, nil},
		"carry": {func(p *flashkit.Problem, in *oracle.Inputs) {
			p.Carry, in.O, in.LSE = true, []float64{1, 1, 9, 9}, []float64{math.Log(4), math.Inf(-1)}
		}, []float64{4, 7.6}, []float64{math.Log(8), math.Log(10)}},
		"lengths": {func(p *flashkit.Problem, in *oracle.Inputs) {
			p.Ragged, in.QLens, in.KVLens = true, []int{1}, []int{1}
		}, []float64{4, 0}, []float64{0, math.Inf(-1)}},
		"a mask that hides a NaN": {func(p *flashkit.Problem, in *oracle.Inputs) {
			p.Score.Mask, in.Mask = true, oracle.Pairs{X: []float64{1, 0}, Shape: [4]int{1, 1, 1, 2}}
			p.Score.Bias, in.Bias = true, oracle.Pairs{X: []float64{0, nan}, Shape: [4]int{1, 1, 1, 2}}
			in.K[2], in.V[2] = nan, nan
		}, []float64{4, 4}, []float64{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			p, in := twoByTwo()
			c.change(&p, &in)
			o, lse := oracle.Forward(p, in)
			requireClose(t, c.o, []float64{o[0], o[2]}, 1e-14)
			if c.lse != nil {
				requireClose(t, c.lse, lse, 1e-14)
			}
		})
	}
}

// Half of the weights are dropped, the others doubled, and which depends on all numbers.
func TestDropout(t *testing.T) {
	// The first words of Random123's known answer test of philox4x32-7, lower halves first.
	for j, number := range []float32{0xb709, 0x3f64, 0x1f81, 0x0a48, 0x5f6f, 0x0d89, 0x4f12, 0x4f73} {
		require.True(t, oracle.Kept((number+.49)/(1<<16), 0, 0, 0, 0, j), j)
		require.False(t, oracle.Kept((number+.5)/(1<<16), 0, 0, 0, 0, j), j)
	}
	require.Equal(t, 65536./(65536-6554), oracle.Keep(.1))
	require.Equal(t, 65536., oracle.Keep(0x.ffffffp0), "something is always kept")
	counts := map[string]int{}
	const n = 20000
	for x := range n {
		for what, kept := range map[string]bool{
			"all": oracle.Kept(.25, 7, 0, 1, x/100, x%100), "seed": oracle.Kept(.25, 8, 0, 1, x/100, x%100) != oracle.Kept(.25, 7, 0, 1, x/100, x%100),
			"batch": oracle.Kept(.25, 7, 1, 1, x/100, x%100) != oracle.Kept(.25, 7, 0, 1, x/100, x%100),
			"head":  oracle.Kept(.25, 7, 0, 2, x/100, x%100) != oracle.Kept(.25, 7, 0, 1, x/100, x%100),
			"row":   oracle.Kept(.25, 7, 0, 1, x/100+1, x%100) != oracle.Kept(.25, 7, 0, 1, x/100, x%100),
			"key":   oracle.Kept(.25, 7, 0, 1, x/100, x%100+1) != oracle.Kept(.25, 7, 0, 1, x/100, x%100),
		} {
			if kept {
				counts[what]++
			}
		}
	}
	require.InDelta(t, .75, float64(counts["all"])/n, .02)
	for what, count := range counts {
		if what != "all" {
			require.InDelta(t, 2*.25*.75, float64(count)/n, .02, what)
		}
	}
}

// A row with a score of NaN or +Inf is NaN, its sink among the scores, and nothing else is: not
// other rows, not the gradients of keys that it does not see.
func TestRowsOfNaN(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 3, KVLen: 3, Dim: 1, VDim: 1, Band: flashkit.Causal()}
	in := func() oracle.Inputs {
		return oracle.Inputs{Q: []float64{1, 2, 3}, K: []float64{1, -1, 2}, V: []float64{4, 5, 6}, DO: []float64{1, 1, 2},
			Bias: oracle.Pairs{X: make([]float64, 9), Shape: [4]int{1, 1, 3, 3}}, Slopes: []float64{1}, Sink: []float64{1}}
	}
	isNaN := func(x []float64) (list []bool) {
		for _, x := range x {
			list = append(list, math.IsNaN(x))
		}
		return list
	}
	for _, x := range []struct {
		name     string
		change   func(p *flashkit.Problem, in *oracle.Inputs)
		rows, dk []bool
	}{
		{"query", func(_ *flashkit.Problem, in *oracle.Inputs) { in.Q[1] = nan }, []bool{false, true, false}, []bool{true, true, false}},
		{"bias", func(p *flashkit.Problem, in *oracle.Inputs) { p.Score.Bias, in.Bias.X[3] = true, inf }, []bool{false, true, false}, []bool{true, true, false}},
		{"hidden bias", func(p *flashkit.Problem, in *oracle.Inputs) { p.Score.Bias, in.Bias.X[1] = true, nan }, []bool{false, false, false}, []bool{false, false, false}},
		{"lowest bias", func(p *flashkit.Problem, in *oracle.Inputs) { p.Score.Bias, in.Bias.X[0] = true, -math.MaxFloat32 }, []bool{false, false, false}, []bool{false, false, false}},
		{"slope", func(p *flashkit.Problem, in *oracle.Inputs) { p.Score.ALiBi, in.Slopes[0] = true, inf }, []bool{true, true, true}, []bool{true, true, true}},
		{"sink", func(p *flashkit.Problem, in *oracle.Inputs) { p.Score.Sink, in.Sink[0] = true, inf }, []bool{true, true, true}, []bool{true, true, true}},
		{"sink without keys", func(p *flashkit.Problem, in *oracle.Inputs) {
			p.Score.Sink, in.Sink[0], p.Band = true, nan, flashkit.Causal().Shift(-1)
		}, []bool{true, true, true}, []bool{true, true, false}},
		{"no sink", func(p *flashkit.Problem, in *oracle.Inputs) { p.Score.Sink, in.Sink[0] = true, -inf }, []bool{false, false, false}, []bool{false, false, false}},
	} {
		p, in := p, in()
		x.change(&p, &in)
		o, lse := oracle.Forward(p, in)
		g := oracle.Backward(p, in)
		require.Equal(t, x.rows, isNaN(o), x.name)
		require.Equal(t, x.rows, isNaN(lse), x.name)
		require.Equal(t, x.dk, isNaN(g.DK), x.name)
		require.Equal(t, x.dk, isNaN(g.DV), x.name)
	}
}
