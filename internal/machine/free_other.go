//go:build !darwin

package machine

// machineMemory is a stand-in for the machine's unknown memory: more than any machine has, and
// below the size at which make panics.
func machineMemory() float64 { return 1 << 40 }
