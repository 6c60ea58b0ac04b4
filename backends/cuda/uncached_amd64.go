//go:build !purego && !race

package cuda

import "unsafe"

// copyUncached copies n bytes with stores that bypass the caches. n and the destination's address
// must be multiples of 16. A device reads lines faster if no core's cache holds them. Call
// storeFence before the device or another thread reads the copy.
//
//go:noescape
func copyUncached(to, from unsafe.Pointer, n int)

// storeFence orders the stores of copyUncached before later stores.
//
//go:noescape
func storeFence()
