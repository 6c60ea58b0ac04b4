package machine

import (
	"math"
	"syscall"
)

// Go and the C library reserve address space 64 MiB at a time, for threads and the heap's tables.
// processFree leaves keptAddresses bytes for these reservations. Arrays of up to littleArrays bytes
// fit into space that is already reserved.
const (
	keptAddresses = 256 << 20
	littleArrays  = 16 << 20
)

// processFree returns the bytes that the process may still map within its limits of address space
// and data (ulimit -v and -d).
func processFree() float64 {
	free := math.Inf(1)
	for _, x := range []struct {
		resource int
		used     string
	}{{syscall.RLIMIT_AS, "VmSize"}, {syscall.RLIMIT_DATA, "VmData"}} {
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(x.resource, &limit); err == nil && limit.Cur < math.MaxInt64 {
			free = min(free, float64(limit.Cur)-kibibytes("/proc/self/status", x.used)*1024-keptAddresses)
		}
	}
	return max(littleArrays, free)
}
