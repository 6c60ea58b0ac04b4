//go:build !purego && !race

package cuda

import "unsafe"

// copyUncached copies n bytes, a multiple of 16, to an address that is one, and
// leaves nothing of what it writes in the caches: a device reads lines faster that no
// core holds. Call storeFence before others may read them.
//
//go:noescape
func copyUncached(to, from unsafe.Pointer, n int)

// storeFence orders what copyUncached wrote before later writes.
//
//go:noescape
func storeFence()
