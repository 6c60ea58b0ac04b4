//go:build !amd64 || purego || race

package cuda

import "unsafe"

// On other processors, copies go through the caches and need no fence. Programs with the race
// detector use the same copies, because the detector would not see stores in assembly.

func copyUncached(to, from unsafe.Pointer, n int) {
	copy(unsafe.Slice((*byte)(to), n), unsafe.Slice((*byte)(from), n))
}

func storeFence() {}
