//go:build !purego

package simd

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// splitRow puts the even elements of each group first, and joinRow restores their order.
func TestSplitRow(t *testing.T) {
	for _, isa := range []*decodeRoutines{&avx2Decode, &avx512Decode} {
		if isa == &avx512Decode && !avx512.has || !avx2.has {
			continue
		}
		for _, groups := range []int{1, 2, 5} {
			row := make([]float32, groups*isa.split)
			for i := range row {
				row[i] = rand.Float32()
			}
			was := slices.Clone(row)
			isa.splitRow(&row[0], len(row))
			for i, x := range row {
				at, half := i%isa.split, isa.split/2
				require.Equal(t, was[i-at+at%half*2+at/half], x)
			}
			isa.joinRow(&row[0], len(row))
			require.Equal(t, was, row)
		}
	}
}
