//go:build !linux

package mpi

import "io"

// Watch does nothing on this system.
func Watch(io.Writer) (status int, watched bool) { return 0, false }
