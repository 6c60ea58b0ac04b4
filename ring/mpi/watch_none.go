//go:build !linux

package mpi

import "io"

// Watch returns 0 and false: it does nothing on this system.
func Watch(io.Writer) (status int, watched bool) { return 0, false }
