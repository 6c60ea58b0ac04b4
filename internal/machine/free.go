package machine

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit/internal/terminal"
)

// Affordable returns an error if less memory than bytes is free: nothing is
// allocated before that is known, as running out of memory ends the program.
func Affordable(what string, bytes float64) error {
	if free := Free(); bytes > free {
		return fmt.Errorf("%s take %s, and this machine has %s free", what, terminal.Bytes(bytes), terminal.Bytes(free))
	}
	return nil
}

// Free returns the bytes that the system could give to this program: what Linux
// says is available, within the limit of a container; else what the machine has.
func Free() float64 {
	free := machineMemory()
	if kib, err := strconv.ParseFloat(strings.TrimSuffix(procField("/proc/meminfo", "MemAvailable"), " kB"), 64); err == nil {
		free = kib * 1024
	}
	const group = "/sys/fs/cgroup/memory."
	if limit, used := readNumber(group+"max"), readNumber(group+"current"); limit > 0 {
		free = min(free, max(0, limit-used))
	}
	return free
}

// readNumber returns the number in a file, 0 if there is none.
func readNumber(path string) float64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	x, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	if err != nil {
		return 0
	}
	return x
}
