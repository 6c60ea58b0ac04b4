package elements

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Nothing outside the rows is touched, not even read: it may belong to a page that is not
// mapped. Otherwise this test crashes.
func TestNothingOutsideIsTouched(t *testing.T) {
	page := syscall.Getpagesize()
	place := func(n int, end bool) []float32 {
		all, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, syscall.Munmap(all)) })
		inside := all[page : 2*page]
		require.NoError(t, syscall.Mprotect(inside, syscall.PROT_READ|syscall.PROT_WRITE))
		if end {
			inside = inside[page-4*n:]
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
				way.update(&AdamW{Eps: 1}, x, y, place(3*n, end), place(3*n, end))
			}
		}
	}
}
