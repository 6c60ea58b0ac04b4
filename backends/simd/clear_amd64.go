//go:build !purego

package simd

import "unsafe"

// clearPadding zeros x. If x is large, the stores bypass the caches, because padding is not read
// soon, and a cached store would load each line first.
func clearPadding(x []byte) {
	const many, line = 1 << 16, 64
	if len(x) < many {
		clear(x)
		return
	}
	from := int(-uintptr(unsafe.Pointer(&x[0])) % line)
	lines := (len(x) - from) / line
	clear(x[:from])
	clearLines(&x[from], lines)
	clear(x[from+lines*line:])
}
