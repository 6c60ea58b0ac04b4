//go:build amd64 && !purego

package simd

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestInt8RowsAndGroups holds the routines for one row and the scores of four rows to float64, for all
// kinds of groups, with gaps between rows of keys and of scales, and keys that are not a multiple of four.
func TestInt8RowsAndGroups(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, lanes *laneRoutines, r *rand.Rand) {
		isa := &avx2Decode.int8
		if lanes == &avx512Lanes {
			isa = &avx512Decode.int8
		}
		testInt8RowsAndGroups(t, isa, r)
	})
}

func testInt8RowsAndGroups(t *testing.T, isa *int8Routines, r *rand.Rand) {
	for range trials(2000) {
		n, keys := 16*(1+r.IntN(12)), 1+r.IntN(19)
		group := []int{32, 64, n, n + 16}[r.IntN(4)]
		groups := (n + group - 1) / group
		step, scaleStep := n+r.IntN(2)*r.IntN(40), groups+r.IntN(2)*r.IntN(5)
		k, scale := make([]int8, (keys-1)*step+n), normals(r, (keys-1)*scaleStep+groups)
		for i := range k {
			k[i] = int8(r.Uint32())
		}
		q, p := normals(r, 4*n), normals(r, keys)
		element := func(j, c int) float64 { return float64(scale[j*scaleStep+c/group]) * float64(k[j*step+c]) }
		s, one := newFenced(3*decodeStep+(keys+1)&^1), newFenced((keys+3)&^3)
		isa.scores(&s.x[0], &k[0], step, &scale[0], scaleStep, &q[0], n, n, group, keys, 0)
		isa.scoreRow(&one.x[0], &k[0], step, &scale[0], scaleStep, &q[0], n, group, keys, 0)
		s.requireFence(t, (keys+1)&^1, decodeStep)
		one.requireFence(t, len(one.x), len(one.x))
		for row := range 4 {
			for j := range keys {
				want, size := 0.0, 0.0
				for c := range n {
					x := float64(q[row*n+c]) * element(j, c)
					want, size = want+x, size+math.Abs(x)
				}
				got := s.x[row*decodeStep+j]
				requireThat(t, near(want, got, size*float64(n)*0x1p-24), "row %d, key %d of %d, %d elements in groups of %d: %g, want %g", row, j, keys, n, group, got, want)
				requireThat(t, row > 0 || near(want, one.x[j], size*float64(n)*0x1p-24), "one row, key %d of %d, %d elements in groups of %d: %g, want %g", j, keys, n, group, one.x[j], want)
			}
		}
		o := newFenced(n)
		clear(o.x)
		isa.valueRow(&o.x[0], &p[0], &k[0], step, &scale[0], scaleStep, n, group, keys, 0)
		o.requireFence(t, n, n)
		for c := range n {
			want, size := 0.0, 0.0
			for j := range keys {
				x := float64(p[j]) * element(j, c)
				want, size = want+x, size+math.Abs(x)
			}
			requireThat(t, near(want, o.x[c], size*float64(keys+2)*0x1p-24), "column %d of %d in groups of %d, %d keys: %g, want %g", c, n, group, keys, o.x[c], want)
		}
	}
}
