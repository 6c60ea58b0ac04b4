package cuda

// Poison lets all later calls find NaN in their workspace, on the device and in the buffers by which
// host tensors are staged. Package conformance asks for it, see conformance.Poisoner. Results keep
// their bits, and calls get slower; a program has no use for it.
func (b *Backend) Poison() { b.poison.Store(true) }

// poisonBits are a NaN as a float32 and as two numbers of 16 bits, and a count that no kernel waits for.
const poisonBits = 0x7ffa7ffa
