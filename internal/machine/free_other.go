//go:build !darwin && !linux

package machine

// machineMemory is what no machine has, where nothing says how much there is.
func machineMemory() float64 { return 1 << 40 }
