//go:build !noasm && !purego

package simd

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTransposeBits(t *testing.T) {
	var src, dst [maskGroup]uint32
	for r := range src {
		src[r], dst[r] = rand.Uint32(), rand.Uint32()
	}
	transposeBits(&dst, &src)
	for r := range src {
		for c := range dst {
			require.Equal(t, src[r]>>c&1, dst[c]>>r&1, "row %d, column %d", r, c)
		}
	}
}
