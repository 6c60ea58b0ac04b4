package simd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// number is the reference's result and the sum of the magnitudes of its terms. The error of a
// float32 result is a small fraction of this sum.
type number struct{ x, size float64 }

func (n *number) add(x, size float64) { n.x += x; n.size += size }

// A pair is a key that a row sees.
type pair struct {
	key                int
	score, softcapGrad float64
	z                  float64 // dropout factor of the weight
}

// pairs returns the pairs of a row, computed in float64 by the definition.
func (s *sample) pairs(b, h, i int) (list []pair) {
	p, a := &s.p, &s.args
	g := h / (p.Heads / p.KVHeads)
	off := s.m[b] - s.n[b]
	if p.Band.IsTopLeft() {
		off = 0
	}
	for _, j := range s.seen(b, h, i) {
		x := pair{key: j, softcapGrad: 1, z: 1}
		for c := range p.Dim {
			x.score += get(&a.Q, s.rowAt(&a.Q, b, h, i)+c) * get(&a.K, s.keyAt(&a.K, b, g, j)+c)
		}
		x.score *= p.SoftmaxScale()
		if c := float64(p.Score.Softcap); c != 0 {
			t := math.Tanh(x.score / c)
			x.score, x.softcapGrad = c*t, 1-t*t
		}
		if p.Score.Bias {
			x.score += get(&a.Bias, pairAt(&a.Bias, b, h, i, j))
		}
		if p.Score.ALiBi {
			slope := get(&a.Slopes, a.Slopes.Offset(b%a.Slopes.Shape()[0], h, 0))
			x.score -= slope * math.Abs(float64(j-i-off-p.Band.Shifted()))
		}
		if drop := float64(p.Score.Dropout); drop != 0 {
			limit := math.Floor(drop*(1<<16) + .5)
			x.z = (1 << 16) / (1<<16 - limit)
			o := &a.Origin
			if float64(random(a.Seed, o.Batch+b, o.Head+h, o.Row+i, o.Key+j)) < limit {
				x.z = 0
			}
		}
		list = append(list, x)
	}
	return list
}

// random returns the 16 random bits of a pair. It is written like the definition of Philox4x32-7 in
// the paper.
func random(seed uint64, b, h, i, j int) uint32 {
	c := [4]uint64{uint64(j / 8), uint64(i), uint64(h), uint64(b)}
	k0, k1 := seed%(1<<32), seed>>32
	for range 7 {
		x, y := 0xD2511F53*c[0], 0xCD9E8D57*c[2]
		c = [4]uint64{y>>32 ^ c[1] ^ k0, y % (1 << 32), x>>32 ^ c[3] ^ k1, x % (1 << 32)}
		k0, k1 = (k0+0x9E3779B9)%(1<<32), (k1+0xBB67AE85)%(1<<32)
	}
	return uint32(c[j%4]) >> (j % 8 / 4 * 16) & 0xffff
}

// forward returns the expected O and LSE of a row, given the previous contents of both tensors.
func (s *sample) forward(b, h, i int) (o []number, lse float64) {
	p, a := &s.p, &s.args
	o = make([]number, p.VDim)
	pairs, m, l := s.pairs(b, h, i), math.Inf(-1), 0.0
	for _, x := range pairs {
		m = max(m, x.score)
	}
	before, sink := math.Inf(-1), math.Inf(-1)
	if p.Carry {
		before = get(&a.LSE, s.rowAt(&a.LSE, b, h, i))
	}
	if p.Score.Sink {
		sink = get(&a.Sink, a.Sink.Offset(0, h, 0))
	}
	if m = max(m, before, sink); math.IsInf(m, -1) {
		return o, m
	}
	l = math.Exp(before-m) + math.Exp(sink-m)
	for _, x := range pairs {
		l += math.Exp(x.score - m)
	}
	for c := range o {
		if before > math.Inf(-1) {
			was := get(&a.O, s.rowAt(&a.O, b, h, i)+c) * math.Exp(before-m) / l
			o[c].add(was, math.Abs(was))
		}
		for _, x := range pairs {
			v := math.Exp(x.score-m) / l * x.z * get(&a.V, s.keyAt(&a.V, b, h/(p.Heads/p.KVHeads), x.key)+c)
			o[c].add(v, math.Abs(v))
		}
	}
	return o, m + math.Log(l)
}

// want collects the expected elements of a tensor, by offset. Other elements must not be written.
type want struct {
	t    *flashkit.Tensor
	list map[int]*number
}

func wanted(t *flashkit.Tensor) *want { return &want{t, map[int]*number{}} }

func (w *want) add(at int, x, size float64) {
	if w.list[at] == nil {
		w.list[at] = new(number)
	}
	w.list[at].add(x, size)
}

// rows adds the first n rows of all heads to the expected elements, with values of 0.
func (w *want) rows(b, n int) {
	for h := range w.t.Shape()[1] {
		for i := range n {
			for c := range w.t.Shape()[3] {
				w.add(w.t.Offset(b, h, i)+c, 0, 0)
			}
		}
	}
}

// check compares a tensor with its expected elements, within a fraction of the magnitudes.
func (w *want) check(t *testing.T, name, about string, precision float64) {
	t.Helper()
	rounding := map[flashkit.DType]float64{flashkit.Float32: 0x1p-24, flashkit.Float16: 0x1p-11, flashkit.BFloat16: 0x1p-8}[w.t.DType()]
	for i := range w.t.Len() {
		got, x := get(w.t, i), w.list[i]
		if x == nil {
			require.True(t, got != got, "%s: %s[%d], which is nobody's, was written: %g", about, name, i, got)
			continue
		}
		if got == x.x {
			continue
		}
		limit := precision*x.size + 1.01*rounding*math.Abs(x.x) + 0x1p-120
		if w.t.DType() == flashkit.Float16 {
			limit += 0x1p-24
		}
		if !(math.Abs(got-x.x) <= limit) {
			t.Fatalf("%s: %s[%d] is %g, want %g to within %g", about, name, i, got, x.x, limit)
		}
	}
}

// startCarry sets O, LSE and RowMax to the result of earlier keys. Some rows have no earlier keys.
func (s *sample) startCarry(r *rand.Rand) {
	a := &s.args
	for b := range s.p.Batch {
		for h := range s.p.Heads {
			for i := range s.n[b] {
				at, lse := s.rowAt(&a.O, b, h, i), r.NormFloat64()*2
				if r.IntN(4) == 0 {
					lse = math.Inf(-1) // no earlier keys: O is not read
				} else {
					for c := range s.p.VDim {
						put(&a.O, at+c, r.NormFloat64())
					}
				}
				put(&a.LSE, s.rowAt(&a.LSE, b, h, i), lse)
				if s.p.RowMax && !math.IsInf(lse, -1) {
					put(&a.RowMax, s.rowAt(&a.RowMax, b, h, i), lse-r.Float64())
				}
			}
		}
	}
}

// expectForward returns the expected O and LSE of the forward pass.
func (s *sample) expectForward() (o, lse *want) {
	a := &s.args
	o, lse = wanted(&a.O), wanted(&a.LSE)
	for b := range s.p.Batch {
		if !s.qPack {
			o.rows(b, s.p.QLen)
			for h := range s.p.Heads {
				for i := s.n[b]; i < s.p.QLen; i++ {
					lse.add(a.LSE.Offset(b, h, i), math.Inf(-1), 0)
				}
			}
		}
		for h := range s.p.Heads {
			for i := range s.n[b] {
				row, x := s.forward(b, h, i)
				lse.add(s.rowAt(&a.LSE, b, h, i), x, 1+math.Abs(x))
				for c, v := range row {
					o.add(s.rowAt(&a.O, b, h, i)+c, v.x, v.size)
				}
			}
		}
	}
	return o, lse
}

// expectBackward returns the expected gradients, given O and LSE.
func (s *sample) expectBackward() map[string]*want {
	p, a := &s.p, &s.args
	dq, dk, dv, db, ds := wanted(&a.DQ), wanted(&a.DK), wanted(&a.DV), wanted(&a.DBias), wanted(&a.DSink)
	for b := range p.Batch {
		if !s.qPack {
			dq.rows(b, p.QLen)
		}
		if !s.kPack {
			dk.rows(b, p.KVLen)
			dv.rows(b, p.KVLen)
		}
		for g := range p.KVHeads {
			for j := range s.m[b] {
				for c := range p.Dim {
					dk.add(s.keyAt(&a.DK, b, g, j)+c, 0, 0)
				}
				for c := range p.VDim {
					dv.add(s.keyAt(&a.DV, b, g, j)+c, 0, 0)
				}
			}
		}
	}
	if p.Score.Bias {
		for b := range a.DBias.Shape()[0] {
			db.rows(b, a.DBias.Shape()[2])
		}
	}
	for h := range p.Heads {
		if p.Score.Sink {
			ds.add(a.DSink.Offset(0, h, 0), 0, 0)
		}
		for b := range p.Batch {
			for i := range s.n[b] {
				s.rowGradients(b, h, i, dq, dk, dv, db, ds)
			}
		}
	}
	return map[string]*want{"dq": dq, "dk": dk, "dv": dv, "dbias": db, "dsink": ds}
}

func (s *sample) rowGradients(b, h, i int, dq, dk, dv, db, ds *want) {
	p, a := &s.p, &s.args
	g, scale := h/(p.Heads/p.KVHeads), p.SoftmaxScale()
	row := func(t *flashkit.Tensor) int { return s.rowAt(t, b, h, i) }
	lse := get(&a.LSE, row(&a.LSE))
	var delta number
	for c := range p.VDim {
		x := get(&a.DO, row(&a.DO)+c) * get(&a.O, row(&a.O)+c)
		delta.add(x, math.Abs(x))
	}
	if !a.DLSE.IsZero() {
		x := get(&a.DLSE, row(&a.DLSE))
		delta.add(-x, math.Abs(x))
	}
	for c := range p.Dim {
		dq.add(row(&a.DQ)+c, 0, 0)
	}
	if math.IsInf(lse, -1) {
		return
	}
	if p.Score.Sink {
		w := math.Exp(get(&a.Sink, a.Sink.Offset(0, h, 0)) - lse)
		ds.add(a.DSink.Offset(0, h, 0), -w*delta.x, w*delta.size)
	}
	for _, x := range s.pairs(b, h, i) {
		w := math.Exp(x.score - lse)
		var dp number
		for c := range p.VDim {
			do := get(&a.DO, row(&a.DO)+c)
			v := do * get(&a.V, s.keyAt(&a.V, b, g, x.key)+c)
			dp.add(x.z*v, x.z*math.Abs(v))
			dv.add(s.keyAt(&a.DV, b, g, x.key)+c, w*x.z*do, math.Abs(w*x.z*do))
		}
		grad, size := w*(dp.x-delta.x), w*(dp.size+delta.size)
		if p.Score.Bias {
			db.add(pairAt(&a.DBias, b, h, i, x.key), grad, size)
		}
		grad, size = grad*x.softcapGrad*scale, size*scale*(x.softcapGrad+1e-3)
		for c := range p.Dim {
			k, q := get(&a.K, s.keyAt(&a.K, b, g, x.key)+c), get(&a.Q, row(&a.Q)+c)
			dq.add(row(&a.DQ)+c, grad*k, size*math.Abs(k))
			dk.add(s.keyAt(&a.DK, b, g, x.key)+c, grad*q, size*math.Abs(q))
		}
	}
}

// digits is the relative precision of float32 kernels if scores have the usual magnitude.
const digits = 3e-6

// precise returns a precision for the sample's scores. The rounding errors of scores grow with the
// scores, and cause errors of the weights.
func (s *sample) precise(digits float64) float64 {
	return digits * max(1, s.p.SoftmaxScale()*math.Sqrt(float64(s.p.Dim)))
}

// checkForward runs a forward kernel against the reference.
func (s *sample) checkForward(t *testing.T, r *rand.Rand, k flashkit.Kernel, precision float64) {
	t.Helper()
	a := &s.args
	fill(&a.O, math.NaN())
	fill(&a.LSE, math.NaN())
	if s.p.Carry {
		s.startCarry(r)
	}
	o, lse := s.expectForward()
	about := k.Name + ": " + s.about
	require.NoError(t, k.Compute(t.Context(), s.p, a), about)
	o.check(t, "o", about, s.precise(precision))
	lse.check(t, "lse", about, s.precise(digits))
	s.checkAround(t)
}

// check runs both passes of the portable kernels against the reference.
func (s *sample) check(t *testing.T, r *rand.Rand) {
	t.Helper()
	a := &s.args
	s.checkForward(t, r, kernel(t, "simd/fwd_generic"), digits)
	if s.p.Features()&flashkit.ForwardFeatures != 0 {
		return
	}
	backward := kernel(t, "simd/bwd_generic")
	all := s.expectBackward()
	require.NoError(t, backward.Compute(t.Context(), s.p, a), s.about)
	for name, w := range all {
		w.check(t, name, s.about, s.precise(digits))
	}
	s.checkAround(t)
}

func (s *sample) checkAround(t *testing.T) {
	t.Helper()
	for _, intact := range s.intact {
		require.True(t, intact(), s.about)
	}
}

// The portable kernels match the definition with each single feature and with many combinations of
// features.
func TestFeatures(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for bit := flashkit.Feature(1); bit < flashkit.AllFeatures; bit <<= 1 {
		t.Run(fmt.Sprint(bit), func(t *testing.T) {
			for i := range rounds {
				newSample(r, drawProblem(t, r, bit, dtypes[i%3])).check(t, r)
			}
		})
	}
	t.Run("mixed", func(t *testing.T) {
		for i := range 20 * rounds {
			f := anyFeatures(r) & flashkit.Feature(r.Uint32())
			if i%2 == 0 {
				f = flashkit.Feature(r.Uint32()) & flashkit.AllFeatures &^ flashkit.ForwardFeatures
			}
			newSample(r, drawProblem(t, r, f, dtypes[i%3])).check(t, r)
		}
	})
}
