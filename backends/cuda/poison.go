package cuda

// Poison fills the workspace and staging buffers of all later calls with NaN, for package
// conformance; see conformance.Poisoner. Results keep their bits, and calls get slower.
func (b *Backend) Poison() { b.poison.Store(true) }

// poisonBits is NaN as a float32 and as two 16-bit floats. As the value of a counter, it is a
// number for which no kernel waits.
const poisonBits = 0x7ffa7ffa
