package main

import (
	"os"
	"syscall"
)

// peakMemory returns a bound of a process's maximum memory in bytes, and this process's own: Linux
// counts the memory of a parent at fork. An emulator's memory does not count.
func peakMemory(s *os.ProcessState) (bound, own int64) {
	if os.Getenv("FLASHKIT_EMULATOR") != "" {
		return 0, 0
	}
	var self syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	return int64(s.SysUsage().(*syscall.Rusage).Maxrss) << 10, int64(self.Maxrss) << 10
}
