//go:build !darwin

package machine

// machineMemory is what no machine has where nothing says how much there is, and
// less than what Go cannot even ask for.
func machineMemory() float64 { return 1 << 40 }
