package hostmem_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/hostmem"
)

// Every type has bytes, which alias its elements.
func TestBytes(t *testing.T) {
	for dtype := range flashkit.DType(16) {
		if dtype.Size() == 0 {
			continue
		}
		x := flashkit.Zeros(dtype, 1, 2, 3, 4)
		b := hostmem.Bytes(&x)
		require.Len(t, b, 24*dtype.Size(), dtype.String())
		b[0] = 1
		require.Equal(t, b, hostmem.Bytes(&x))
	}
	x := flashkit.Int32s([]int32{7, 0x01010101}, 1, 1, 1, 2)
	require.Equal(t, []byte{1, 1, 1, 1}, hostmem.Bytes(&x)[4:])
	empty := flashkit.Zeros(flashkit.Float32, 1, 0, 3, 4)
	require.Empty(t, hostmem.Bytes(&empty))
}
