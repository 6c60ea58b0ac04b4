//go:build unix

package wasm

import "golang.org/x/sys/unix"

// probeMemory returns an error if the operating system cannot supply n bytes.
func probeMemory(n int) error {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	return unix.Munmap(b)
}
