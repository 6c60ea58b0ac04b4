package pool

import "math"

// An Arena hands out float32 workspace to one worker.
type Arena struct {
	All  []float32
	Free []float32 // the part that Take has not handed out
	Slot int       // of the worker

	poisoned bool // tests: see Queue.Poison
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

// Take returns n floats that hold leftovers of earlier items.
func (a *Arena) Take(n int) []float32 {
	x := a.Free[:n:n]
	a.Free = a.Free[n:]
	return x
}

// poisonBits are a NaN as a float32, as a float64 made of two, and as two numbers of 16 bits
// of either type; as words they are no mask, index or count that a kernel could use.
const poisonBits = 0x7ffa7ffa

// poison fills the first n floats of the arena, and cuts it off behind them.
func (a *Arena) poison(n int) {
	if a.All = a.All[:n]; n == 0 {
		return
	}
	a.All[0] = math.Float32frombits(poisonBits)
	for done := 1; done < n; done *= 2 {
		copy(a.All[done:], a.All[:done])
	}
}
