package machine

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit/internal/terminal"
)

// Affordable returns an error if less memory than the given bytes is free. Callers check before
// they allocate, because running out of memory kills the program.
func Affordable(what string, bytes float64) error {
	if free := Free(); bytes > free {
		return fmt.Errorf("%s take %s, and %s are free", what, terminal.Bytes(bytes), terminal.Bytes(free))
	}
	return nil
}

// Free returns the bytes available to this program: Linux's MemAvailable, or else the machine's
// memory, within the limits of the process and its control groups.
func Free() float64 {
	free := machineMemory()
	if kib := kibibytes("/proc/meminfo", "MemAvailable"); kib > 0 {
		free = kib * 1024
	}
	return min(free, groupFree(os.DirFS("/")), processFree())
}

// kibibytes returns a field of a file in /proc, or 0 if the field is absent.
func kibibytes(path, name string) float64 {
	kib, err := strconv.ParseFloat(strings.TrimSuffix(procField(path, name), " kB"), 64)
	if err != nil || math.IsNaN(kib) {
		return 0
	}
	return kib
}
