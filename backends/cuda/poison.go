package cuda

// Poison fills the workspace and staging buffers of all later calls with NaN, for package
// conformance; see conformance.Poisoner. Results keep their bits, and calls get slower.
func (b *Backend) Poison() { b.poison.Store(true) }

// poisonBits is NaN as a float32 and as two 16-bit floats. As a counter, it has a value that no
// kernel waits for.
const poisonBits = 0x7ffa7ffa
