//go:build !amd64 || purego || race

package cuda

import "unsafe"

// On other processors, and with the race detector, which should see the copies, they go through the
// caches and need no fence.

func copyUncached(to, from unsafe.Pointer, n int) {
	copy(unsafe.Slice((*byte)(to), n), unsafe.Slice((*byte)(from), n))
}

func storeFence() {}
