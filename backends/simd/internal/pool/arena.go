package pool

import "math"

// An Arena hands out float32 workspace to one worker.
type Arena struct {
	All  []float32
	Free []float32 // the part that Take has not handed out
	Slot int       // index of the worker

	poisoned bool // for tests; see Queue.Poison
}

// Reserve makes room for n floats.
func (a *Arena) Reserve(n int) {
	if len(a.All) < n {
		a.All = make([]float32, n)
	}
	if a.poisoned {
		a.poison(n)
	}
}

// Reset takes back what Take has handed out.
func (a *Arena) Reset() {
	a.Free = a.All
	if a.poisoned {
		a.poison(len(a.All))
	}
}

// Take returns n floats. They hold leftovers of earlier items, not 0.
func (a *Arena) Take(n int) []float32 {
	x := a.Free[:n:n]
	a.Free = a.Free[n:]
	return x
}

// poisonBits is NaN as a float32. Two such words are NaN as a float64. Each half of the word is NaN
// as a binary16 and as a bfloat16. As an integer, poisonBits is not a valid mask, index or count in
// any kernel.
const poisonBits = 0x7ffa7ffa

// poison sets the first n floats of the arena to poisonBits, and shortens the arena to n floats.
func (a *Arena) poison(n int) {
	if a.All = a.All[:n]; n == 0 {
		return
	}
	a.All[0] = math.Float32frombits(poisonBits)
	for done := 1; done < n; done *= 2 {
		copy(a.All[done:], a.All[:done])
	}
}
