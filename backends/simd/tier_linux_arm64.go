//go:build !purego

package simd

import "golang.org/x/sys/unix"

// hasBF16 reads the processor's features from the auxiliary vector.
func hasBF16() bool {
	const hwcap2, bf16 = 26, 1 << 14
	list, _ := unix.Auxv()
	for _, x := range list {
		if x[0] == hwcap2 {
			return x[1]&bf16 != 0
		}
	}
	return false
}
