//go:build !purego

package simd

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/half"
)

// bf16Rows returns rows of random bfloat16, step elements apart, with NaN between them.
func bf16Rows(r *rand.Rand, rows, cols, step int) []uint16 {
	x := make([]uint16, (rows-1)*step+cols)
	for i := range x {
		x[i] = 0x7fc0
		if i%step < cols {
			x[i] = half.ToBF16(float32(r.NormFloat64()))
		}
	}
	return x
}

// A score is the dot product of two rows of bfloat16, within rounding errors of float32. The
// maximum is the largest score.
func TestBF16Scores(t *testing.T) {
	if !neonBF16.has {
		t.Skip(neonBF16.lack)
	}
	r, lanes := rand.New(rand.NewPCG(rand.Uint64(), 0)), neonLanes.lanes
	for range trials(400) {
		dim, keys := 8*(1+r.IntN(9)), 1+r.IntN(30)
		step, qStep := dim+r.IntN(2)*r.IntN(9), dim+r.IntN(2)*r.IntN(9)
		k, q := bf16Rows(r, keys, dim, step), bf16Rows(r, lanes, dim, qStep)
		packed := make([]uint16, lanes*dim)
		packQueriesNEONBF16(&packed[0], &q[0], qStep, dim)
		s, top, want := newFenced(keys*lanes), make([]float32, lanes), make([]float32, lanes)
		for i := range top {
			top[i] = float32(r.NormFloat64())
		}
		copy(want, top)
		scoresNEONBF16(&s.x[0], &k[0], step, &packed[0], dim, keys, &top[0])
		for j := range keys {
			for i := range lanes {
				dot, size := 0.0, 0.0
				for c := range dim {
					x := float64(half.FromBF16(k[j*step+c])) * float64(half.FromBF16(q[i*qStep+c]))
					dot, size = dot+x, size+math.Abs(x)
				}
				got := s.x[j*lanes+i]
				requireThat(t, near(dot, got, size*float64(dim)*0x1p-23), "dim %d, %d keys, s[%d][%d]: %g, want %g", dim, keys, j, i, got, dot)
				want[i] = max(want[i], got)
			}
		}
		require.Equal(t, want, top)
		s.requireFence(t, lanes, lanes)
	}
}

// O is computed from weights rounded to bfloat16. The test draws the numbers of columns and of
// groups of four keys, with alpha and without.
func TestBF16Values(t *testing.T) {
	if !neonBF16.has {
		t.Skip(neonBF16.lack)
	}
	r, lanes := rand.New(rand.NewPCG(rand.Uint64(), 0)), neonLanes.lanes
	for i := range trials(400) {
		quads, vdim := 1+r.IntN(9), 2*(1+r.IntN(20))
		width := upToQuads(vdim)
		step := width + r.IntN(2)*r.IntN(9)
		v, p := bf16Rows(r, quad*quads, width, step), make([]float32, quad*quads*lanes)
		for i := range p {
			p[i] = r.Float32()
		}
		values, weights := make([]uint16, len(p)/lanes*width), make([]uint16, len(p))
		packKeysNEONBF16(&values[0], &v[0], step, width, quads)
		packWeightsNEONBF16(&weights[0], &p[0], quads)
		o, before, alpha := newFenced(vdim*lanes), make([]float32, vdim*lanes), make([]float32, lanes)
		var by *float32
		if i%2 == 0 {
			by = &alpha[0]
			for i := range alpha {
				alpha[i] = r.Float32()
			}
			for i := range before {
				before[i] = float32(r.NormFloat64())
			}
			copy(o.x, before)
		}
		addValuesNEONBF16(&o.x[0], &values[0], quad*width, &weights[0], quads, vdim, by)
		for c := range vdim {
			for i := range lanes {
				want := float64(alpha[i]) * float64(before[c*lanes+i])
				size := math.Abs(want)
				for j := range quad * quads {
					x := float64(half.FromBF16(v[j*step+c])) * float64(half.FromBF16(half.ToBF16(p[j*lanes+i])))
					want, size = want+x, size+math.Abs(x)
				}
				got := o.x[c*lanes+i]
				requireThat(t, near(want, got, size*float64(quad*quads+2)*0x1p-23), "%d quads, column %d of %d, lane %d: %g, want %g", quads, c, vdim, i, got, want)
			}
		}
		o.requireFence(t, lanes, lanes)
	}
}
