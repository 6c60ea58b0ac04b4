package elements

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/guarded"
)

// Rows are next to unmapped pages. The test would crash if a routine accessed memory outside the
// rows.
func TestNothingOutsideIsTouched(t *testing.T) {
	place := func(n int, end bool) []float32 {
		pieces, free, err := guarded.Memory(1, 4*n)
		require.NoError(t, err)
		t.Cleanup(free)
		inside := pieces[0]
		if end {
			inside = inside[len(inside)-4*n:]
		}
		return unsafe.Slice((*float32)(unsafe.Pointer(&inside[0])), n)
	}
	for _, way := range ways() {
		for n := 1; n <= 70; n++ {
			for _, end := range []bool{false, true} {
				x, y, weight, bias, moments := place(3*n, end), place(3*n, end), place(n, end), place(n, end), place(6, end)
				way.rowsOf(y, x, weight, bias, moments, 1e-5)
				way.gradientsOf(place(3*n, end), x, y, weight, moments, bias, place(n, end))
				way.addTo(bias, x, n, 3)
				halves := unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(place((n+1)/2, end)))), (n+1)/2*2)
				if end {
					halves = halves[len(halves)-n:]
				}
				way.toBF16(halves[:n], weight)
				way.fromBF16(weight, halves[:n])
				way.update(&AdamW{Eps: 1}, x, y, place(3*n, end), place(3*n, end))
			}
		}
	}
}
