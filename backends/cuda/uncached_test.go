package cuda

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// copyUncached copies n bytes and no more, from any address.
func TestCopyUncached(t *testing.T) {
	const most, around, guard = 1 << 10, 64, 0xa5
	room := make([]byte, most+3*around)
	to := room[-uintptr(unsafe.Pointer(unsafe.SliceData(room)))%rowAlignment+around:]
	from := make([]byte, most+rowAlignment)
	for i := range from {
		from[i] = byte(rand.Uint32())
	}
	for n := 0; n <= most; n += rowAlignment {
		for shift := range rowAlignment {
			for i := range room {
				room[i] = guard
			}
			copyUncached(unsafe.Pointer(&to[0]), unsafe.Pointer(&from[shift]), n)
			storeFence()
			require.Equal(t, from[shift:shift+n], to[:n])
			require.Equal(t, len(room)-n, bytes.Count(slices.Concat(room[:len(room)-len(to)], to[n:]), []byte{guard}), "bytes around %d", n)
		}
	}
}
