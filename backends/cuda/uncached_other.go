//go:build !amd64 || purego || race

package cuda

import "unsafe"

// On other processors, copies go through the caches and need no fence. So do copies with the race
// detector, which would not see the stores of assembly.

func copyUncached(to, from unsafe.Pointer, n int) {
	copy(unsafe.Slice((*byte)(to), n), unsafe.Slice((*byte)(from), n))
}

func storeFence() {}
