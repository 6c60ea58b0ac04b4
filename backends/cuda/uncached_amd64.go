//go:build !purego && !race

package cuda

import "unsafe"

// copyUncached copies n bytes to an address, both multiples of 16, and bypasses the caches: a
// device reads lines faster if no core holds them. Call storeFence before others read the copy.
//
//go:noescape
func copyUncached(to, from unsafe.Pointer, n int)

// storeFence orders the stores of copyUncached before later stores.
//
//go:noescape
func storeFence()
