package simd

import "math"

// Poison lets all later calls find NaN in their workspace, whenever a call or an item
// begins. Package conformance asks for it, see conformance.Poisoner: a kernel that reads what
// an earlier one left would else be right by chance. Results keep their bits, and calls
// get slower; a program has no use for it.
func (b *Backend) Poison() { b.poisoned.Store(true) }

// poison makes the arenas of the job those of a poisoned backend.
func (j *job) poison() {
	j.shared.poisoned = true
	for w := range j.spaces {
		j.spaces[w].poisoned = true
	}
}

// poisonBits are a NaN as a float32, as a float64 made of two, and as two numbers of 16 bits
// of either type; as words they are no mask, index or count that a kernel could use.
const poisonBits = 0x7ffa7ffa

// poison fills the first n floats of the arena, and cuts it off behind them.
func (a *arena) poison(n int) {
	if a.all = a.all[:n]; n == 0 {
		return
	}
	a.all[0] = math.Float32frombits(poisonBits)
	for done := 1; done < n; done *= 2 {
		copy(a.all[done:], a.all[:done])
	}
}

// BatchInvariant says that a sequence has the same bits alone as in any batch: see
// conformance.BatchInvariant.
func (b *Backend) BatchInvariant() bool { return true }
