package machine

import (
	"math"
	"syscall"
)

// Of the address space that a limit leaves, some is kept for threads and for the heap's own
// tables: Go and the C library reserve 64 MiB at a time. Little arrays find room in what is
// reserved already.
const (
	keptAddresses = 256 << 20
	littleArrays  = 16 << 20
)

// processFree returns the bytes that the process may still map, by the limits of its address
// space and of its data (ulimit -v and -d).
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
