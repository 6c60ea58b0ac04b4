package dispatch

import (
	"math"
	"sync/atomic"
)

// A factor is the logarithm of measured over predicted time, with the number of measurements. It is
// lock-free.
type factor struct {
	bits atomic.Uint64 // float32 logarithm above the 32-bit number
}

func (f *factor) log() (log float64, n uint32) {
	bits := f.bits.Load()
	return float64(math.Float32frombits(uint32(bits >> 32))), uint32(bits)
}

func (f *factor) set(log float64, n uint32) {
	f.bits.Store(uint64(math.Float32bits(float32(log)))<<32 | uint64(n))
}

// add adds a measurement to the running mean of the latest ones.
func (f *factor) add(log float64) {
	const most = 4
	was, n := f.log()
	n = min(n, most-1) + 1
	f.set(was+(log-was)/float64(n), n)
}

// Limits on measurements of other sizes.
const (
	// maxShift bounds the factor by which such a measurement moves a kernel against another. Nor
	// does a kernel pass one whose own prediction is faster by more.
	maxShift = 2

	// margin is the predicted gain that such a measurement needs to overrule own predictions.
	margin = 1.15
)

// excess returns the logarithm of f over g, clamped; 0 if either is unmeasured.
func (f *factor) excess(g *factor) float64 {
	a, n := f.log()
	b, m := g.log()
	if n == 0 || m == 0 {
		return 0
	}
	return clampShift(a - b)
}

// clampShift limits the logarithm of a factor to maxShift.
func clampShift(log float64) float64 {
	most := math.Log(maxShift)
	return max(-most, min(log, most))
}
