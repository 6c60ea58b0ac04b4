package oracle_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
	"github.com/stretchr/testify/require"
)

var nan, inf = math.NaN(), math.Inf(1)

// By hand. The scores are 0, ln 3 in row 0 and 0, 2 ln 3 in row 1, so the
// weights are 1/4, 3/4 and 1/10, 9/10.
func twoByTwo() (flashkit.Problem, oracle.Inputs) {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 2, KVLen: 2, Dim: 2, VDim: 2, Scale: 1}
	return p, oracle.Inputs{
		Q:  []float64{1, 0, 2, 0},
		K:  []float64{0, 5, math.Log(3), 7},
		V:  []float64{4, 0, 8, 1},
		DO: []float64{1, 0, 1, 4},
	}
}

func TestForwardByHand(t *testing.T) {
	p, in := twoByTwo()
	o, lse := oracle.Forward(p, in)
	requireClose(t, []float64{7, 0.75, 7.6, 0.9}, o, 1e-15)
	requireClose(t, []float64{math.Log(4), math.Log(10)}, lse, 1e-15)

	p.Band = flashkit.Causal() // row 0 sees key 0 only
	o, lse = oracle.Forward(p, in)
	requireClose(t, []float64{4, 0, 7.6, 0.9}, o, 1e-15)
	requireClose(t, []float64{0, math.Log(10)}, lse, 1e-15)

	p.Band, p.Dim, p.Scale = flashkit.Band{}, 4, 0 // 1/sqrt(4) undoes the doubled Q
	in.Q, in.K = []float64{2, 0, 0, 0, 4, 0, 0, 0}, []float64{0, 5, 0, 0, math.Log(3), 7, 0, 0}
	o, _ = oracle.Forward(p, in)
	requireClose(t, []float64{7, 0.75, 7.6, 0.9}, o, 1e-15)
}

func TestBackwardByHand(t *testing.T) {
	// dP is 4, 8 in row 0 and 4, 12 in row 1, with means 7 and 11.2, so dS is
	// -0.75, 0.75 and -0.72, 0.72.
	p, in := twoByTwo()
	g := oracle.Backward(p, in)
	dq, dk, dv := g.DQ, g.DK, g.DV
	requireClose(t, []float64{0.75 * math.Log(3), 1.5, 0.72 * math.Log(3), 1.44}, dq, 1e-14)
	requireClose(t, []float64{-0.75 - 1.44, 0, 0.75 + 1.44, 0}, dk, 1e-14)
	requireClose(t, []float64{0.35, 0.4, 1.65, 3.6}, dv, 1e-14)

	// dLSE adds P * dLSE: 1, 3 to row 0 and 2, 18 to row 1.
	in.DLSE = []float64{4, 20}
	g = oracle.Backward(p, in)
	dq, dk, dv = g.DQ, g.DK, g.DV
	requireClose(t, []float64{3.75 * math.Log(3), 0.25*5 + 3.75*7, 18.72 * math.Log(3), 1.28*5 + 18.72*7}, dq, 1e-13)
	requireClose(t, []float64{0.25 + 2*1.28, 0, 3.75 + 2*18.72, 0}, dk, 1e-14)
	requireClose(t, []float64{0.35, 0.4, 1.65, 3.6}, dv, 1e-14)
}

func requireClose(t *testing.T, want, got []float64, tolerance float64, what ...any) {
	t.Helper()
	require.Len(t, got, len(want), what...)
	for i, w := range want {
		if math.IsInf(w, -1) && math.IsInf(got[i], -1) {
			continue
		}
		require.InDelta(t, w, got[i], tolerance*(1+math.Abs(w)), what...)
	}
}

// random returns a tiny problem and inputs: groups of heads, Dim unlike VDim,
// bands of both alignments, rows that see no key.
func random(r *rand.Rand) (flashkit.Problem, oracle.Inputs) {
	kv := 1 + r.IntN(2)
	p := flashkit.Problem{
		Batch: 1 + r.IntN(2), Heads: kv * (1 + r.IntN(3)), KVHeads: kv,
		QLen: 1 + r.IntN(5), KVLen: 1 + r.IntN(5), Dim: 1 + r.IntN(3), VDim: 1 + r.IntN(3),
		Band: flashkit.Window(r.IntN(5)-1, r.IntN(4)-1),
	}
	if r.IntN(2) == 0 {
		p.Band = p.Band.TopLeft()
	}
	if r.IntN(2) == 0 {
		p.Scale = r.Float32() + 0.1
	}
	fill := func(shape [4]int) []float64 {
		x := make([]float64, shape[0]*shape[1]*shape[2]*shape[3])
		for i := range x {
			x[i] = r.NormFloat64()
		}
		return x
	}
	in := oracle.Inputs{Q: fill(p.QShape()), K: fill(p.KShape()), V: fill(p.VShape()), DO: fill(p.OShape())}
	if r.IntN(2) == 0 {
		in.DLSE = fill(p.LSEShape())
	}
	return p, in
}

// visible is the definition of the band, in numbers.
func visible(p flashkit.Problem, i, j int) bool {
	off, left, right := p.KVLen-p.QLen, p.Band.Left(), p.Band.Right()
	if p.Band.IsTopLeft() {
		off = 0
	}
	return (left == flashkit.Unlimited || i+off-left <= j) && (right == flashkit.Unlimited || j <= i+off+right)
}

// plain returns one row of O and its LSE from the definition, without a maximum.
func plain(p flashkit.Problem, in oracle.Inputs, b, h, i int) (o []float64, lse float64) {
	g := h / (p.Heads / p.KVHeads)
	o = make([]float64, p.VDim)
	var sum float64
	for j := range p.KVLen {
		if !visible(p, i, j) {
			continue
		}
		key := (b*p.KVHeads+g)*p.KVLen + j
		var s float64
		for d := range p.Dim {
			s += in.Q[((b*p.Heads+h)*p.QLen+i)*p.Dim+d] * in.K[key*p.Dim+d]
		}
		w := math.Exp(s * p.SoftmaxScale())
		sum += w
		for d := range o {
			o[d] += w * in.V[key*p.VDim+d]
		}
	}
	for d := range o {
		if sum > 0 {
			o[d] /= sum
		}
	}
	return o, math.Log(sum) // ln 0 is -Inf
}

func TestForwardIsTheDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	empty := 0
	for range 500 {
		p, in := random(r)
		var wantO, wantLSE []float64
		for b := range p.Batch {
			for h := range p.Heads {
				for i := range p.QLen {
					o, lse := plain(p, in, b, h, i)
					wantO, wantLSE = append(wantO, o...), append(wantLSE, lse)
					if math.IsInf(lse, -1) {
						empty++
					}
				}
			}
		}
		o, lse := oracle.Forward(p, in)
		requireClose(t, wantO, o, 1e-13, p)
		requireClose(t, wantLSE, lse, 1e-13, p)
	}
	require.NotZero(t, empty, "no row without keys was tried")
}

// loss returns the function whose gradients Backward returns.
func loss(p flashkit.Problem, in oracle.Inputs) (sum float64) {
	o, lse := oracle.Forward(p, in)
	for i := range o {
		sum += o[i] * in.DO[i]
	}
	for i := range in.DLSE {
		if !math.IsInf(lse[i], -1) { // a row without keys has a constant LSE
			sum += lse[i] * in.DLSE[i]
		}
	}
	return sum
}

// slopes returns the finite differences of the loss by the elements of x, which is one of the inputs.
func slopes(p flashkit.Problem, in oracle.Inputs, x []float64) []float64 {
	const step = 1e-5
	d := make([]float64, len(x))
	for i, at := range x {
		x[i] = at + step
		up := loss(p, in)
		x[i] = at - step
		down := loss(p, in)
		x[i] = at
		d[i] = (up - down) / (2 * step)
	}
	return d
}

func TestBackwardIsTheSlope(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 150 {
		p, in := random(r)
		g := oracle.Backward(p, in)
		dq, dk, dv := g.DQ, g.DK, g.DV
		requireClose(t, slopes(p, in, in.Q), dq, 1e-8, p)
		requireClose(t, slopes(p, in, in.K), dk, 1e-8, p)
		requireClose(t, slopes(p, in, in.V), dv, 1e-8, p)
	}
}

// spoil overwrites the hidden rows of x.
func spoil(x []float64, shape [4]int, with float64, hidden func(row int) bool) {
	for at := range x {
		if hidden(at / shape[3] % shape[2]) {
			x[at] = with
		}
	}
}

// Unseen keys and rows that see no key may hold any values.
func TestHiddenValuesDoNotLeak(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range 300 {
		p, in := random(r)
		hiddenKey := func(j int) bool {
			for i := range p.QLen {
				if visible(p, i, j) {
					return false
				}
			}
			return true
		}
		emptyRow := func(i int) bool {
			for j := range p.KVLen {
				if visible(p, i, j) {
					return false
				}
			}
			return true
		}
		o, lse := oracle.Forward(p, in)
		g := oracle.Backward(p, in)
		dq, dk, dv := g.DQ, g.DK, g.DV
		for _, with := range []float64{nan, inf, -inf} {
			spoil(in.K, p.KShape(), with, hiddenKey)
			spoil(in.V, p.VShape(), with, hiddenKey)
			spoil(in.Q, p.QShape(), with, emptyRow)
			spoil(in.DO, p.OShape(), with, emptyRow)
			spoil(in.DLSE, p.LSEShape(), with, emptyRow)
			o2, lse2 := oracle.Forward(p, in)
			require.Equal(t, [][]float64{o, lse}, [][]float64{o2, lse2}, "%v, %g", p, with)
			g2 := oracle.Backward(p, in)
			dq2, dk2, dv2 := g2.DQ, g2.DK, g2.DV
			require.Equal(t, [][]float64{dq, dk, dv}, [][]float64{dq2, dk2, dv2}, "%v, %g", p, with)
		}
		spoil(o, p.OShape(), 0, func(i int) bool { return !emptyRow(i) })
		spoil(dq, p.QShape(), 0, func(i int) bool { return !emptyRow(i) })
		spoil(dk, p.KShape(), 0, func(j int) bool { return !hiddenKey(j) })
		spoil(dv, p.VShape(), 0, func(j int) bool { return !hiddenKey(j) })
		for _, x := range [][]float64{o, dq, dk, dv} {
			require.Equal(t, make([]float64, len(x)), x, "%v: not 0 where nothing is seen", p)
		}
	}
}

// A key that one row sees and another does not reaches the first alone.
func TestNaNReachesOnlyWhoSeesIt(t *testing.T) {
	p, in := twoByTwo()
	p.Band = flashkit.Causal()
	in.K[2], in.V[2] = nan, nan // key 1, which row 0 does not see
	o, lse := oracle.Forward(p, in)
	require.Equal(t, []float64{4, 0}, o[:2])
	require.Equal(t, 0.0, lse[0])
	require.True(t, math.IsNaN(o[2]) && math.IsNaN(lse[1]))
	dq := oracle.Backward(p, in).DQ
	require.Equal(t, []float64{0, 0}, dq[:2])
	require.True(t, math.IsNaN(dq[2]))
}

func TestEmptyDimensions(t *testing.T) {
	for _, name := range []string{
		"b0-h4-g2-n3-m5-d2-dv3-f32-causal", "b2-h4-g2-n0-m5-d2-dv3-f32", "b2-h4-g2-n3-m0-d2-dv3-f32-window1.1", "b1-h4-g2-n0-m0-d2-dv3-f32",
	} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		size := func(s [4]int) int { return s[0] * s[1] * s[2] * s[3] }
		ones := func(n int) []float64 {
			x := make([]float64, n)
			for i := range x {
				x[i] = 1
			}
			return x
		}
		in := oracle.Inputs{Q: ones(size(p.QShape())), K: ones(size(p.KShape())), V: ones(size(p.VShape())), DO: ones(size(p.OShape()))}
		for _, in.DLSE = range [][]float64{nil, ones(size(p.LSEShape()))} {
			o, lse := oracle.Forward(p, in)
			g := oracle.Backward(p, in)
			dq, dk, dv := g.DQ, g.DK, g.DV
			require.Len(t, lse, size(p.LSEShape()), name)
			for _, x := range lse {
				require.True(t, math.IsInf(x, -1), name)
			}
			for i, shape := range [][4]int{p.OShape(), p.QShape(), p.KShape(), p.VShape()} {
				got := [][]float64{o, dq, dk, dv}[i]
				require.Len(t, got, size(shape), name)
				for _, x := range got {
					require.Zero(t, x, name)
				}
			}
		}
	}
}
