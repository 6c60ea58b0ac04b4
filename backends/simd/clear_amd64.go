//go:build !purego

package simd

import "unsafe"

// clearPadding writes zeros. Many of them go past the caches: nobody reads them soon, and a
// line that goes by way of a cache is read first.
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
