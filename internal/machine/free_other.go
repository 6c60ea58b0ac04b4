//go:build !darwin

package machine

// machineMemory stands for the machine's memory where the system does not tell it: more than any
// machine has, and less than the size at which make panics.
func machineMemory() float64 { return 1 << 40 }
