package dispatch

import (
	"math"
	"sync/atomic"
)

// A factor is what a kernel took over what it predicts itself, as a logarithm, and
// how many measurements say so. Nothing waits for a lock.
type factor struct {
	bits atomic.Uint64 // a float32 above the number
}

func (f *factor) log() (log float64, n uint32) {
	bits := f.bits.Load()
	return float64(math.Float32frombits(uint32(bits >> 32))), uint32(bits)
}

func (f *factor) set(log float64, n uint32) {
	f.bits.Store(uint64(math.Float32bits(float32(log)))<<32 | uint64(n))
}

// add takes one more measurement into the mean of the latest ones.
func (f *factor) add(log float64) {
	const most = 4
	was, n := f.log()
	n = min(n, most-1) + 1
	f.set(was+(log-was)/float64(n), n)
}

// What is believed without a measurement near the size of a problem.
const (
	// elsewhere is the factor by which a measurement elsewhere moves a kernel against
	// another one, at most; and no kernel passes one whose own prediction is faster by more.
	maxShift = 2

	// doubt is the factor below which it overrules no kernel's own prediction.
	margin = 1.15
)

// over returns the logarithm by which f errs more than g, bounded.
func (f *factor) excess(g *factor) float64 {
	a, n := f.log()
	b, m := g.log()
	if n == 0 || m == 0 {
		return 0
	}
	return clampShift(a - b)
}

// bounded returns the logarithm of a factor that was measured elsewhere, bounded.
func clampShift(log float64) float64 {
	most := math.Log(maxShift)
	return max(-most, min(log, most))
}
