package machine

import "golang.org/x/sys/unix"

func machineMemory() float64 {
	n, err := unix.SysctlUint64("hw.memsize")
	if err != nil {
		return 1 << 40
	}
	return float64(n)
}
