package cuda

import "unsafe"

// Poison lets all later calls find NaN in their workspace, on the device and in the buffers by which
// host tensors are staged. Package conformance asks for it, see conformance.Poisoner. Results keep
// their bits, and calls get slower; a program has no use for it.
func (b *Backend) Poison() { b.poison.Store(true) }

// poisonBits are a NaN as a float32 and as two numbers of 16 bits, and a count that no kernel waits for.
const poisonBits = 0x7ffa7ffa

// grow makes sure of a staging buffer's memory. That of a poisoned backend holds NaN afterwards.
func (b *Backend) grow(l *stagingBuffer, bytes int) error {
	return b.do(func() error {
		if err := l.grow(b.drv, bytes); err != nil || !b.poison.Load() {
			return err
		}
		for i := range unsafe.Slice((*uint32)(l.host), bytes/4) {
			unsafe.Slice((*uint32)(l.host), bytes/4)[i] = poisonBits
		}
		return b.drv.MemsetD32Async(l.device, poisonBits, bytes/4, l.stream)
	})
}
