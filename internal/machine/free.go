package machine

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit/internal/terminal"
)

// Affordable returns an error if less memory than bytes is free: nothing is
// allocated before that is known, as running out of memory ends the program.
func Affordable(what string, bytes float64) error {
	if free := Free(); bytes > free {
		return fmt.Errorf("%s take %s, and %s are free", what, terminal.Bytes(bytes), terminal.Bytes(free))
	}
	return nil
}

// Free returns the bytes that the system could give to this program: the memory that Linux
// calls available, within the limits of the process and of its control groups; else the
// machine's memory.
func Free() float64 {
	free := machineMemory()
	if kib := kibibytes("/proc/meminfo", "MemAvailable"); kib > 0 {
		free = kib * 1024
	}
	return min(free, groupFree(os.DirFS("/")), processFree())
}

// kibibytes returns a field of a file of /proc, 0 if there is none.
func kibibytes(path, name string) float64 {
	kib, err := strconv.ParseFloat(strings.TrimSuffix(procField(path, name), " kB"), 64)
	if err != nil || math.IsNaN(kib) {
		return 0
	}
	return kib
}
