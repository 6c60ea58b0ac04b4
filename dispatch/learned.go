package dispatch

import (
	"math"
	"sync/atomic"
)

// A factor is the logarithm of the ratio of measured to predicted time, with the number of
// measurements. Its methods are lock-free.
type factor struct {
	bits atomic.Uint64 // high half: logarithm as float32; low half: number of measurements
}

func (f *factor) log() (log float64, n uint32) {
	bits := f.bits.Load()
	return float64(math.Float32frombits(uint32(bits >> 32))), uint32(bits)
}

func (f *factor) set(log float64, n uint32) {
	f.bits.Store(uint64(math.Float32bits(float32(log)))<<32 | uint64(n))
}

// add updates the mean logarithm with a measurement. From the fourth on, each measurement has
// weight 1/4.
func (f *factor) add(log float64) {
	const most = 4
	was, n := f.log()
	n = min(n, most-1) + 1
	f.set(was+(log-was)/float64(n), n)
}

// Limits on the effect of measurements made at another problem size.
const (
	// maxShift bounds the factor by which measurements at another size change the ratio of two
	// kernels' predicted times. A kernel without a measurement near the problem's size is also
	// never chosen if its own prediction exceeds maxShift times the shortest own prediction.
	maxShift = 2

	// margin is the speedup that a kernel without a measurement near the problem's size needs over
	// the kernel with the shortest own prediction.
	margin = 1.15
)

// excess returns the logarithm of f/g, limited by clampShift. It returns 0 if f or g is unmeasured.
func (f *factor) excess(g *factor) float64 {
	a, n := f.log()
	b, m := g.log()
	if n == 0 || m == 0 {
		return 0
	}
	return clampShift(a - b)
}

// clampShift limits a factor to the range from 1/maxShift to maxShift. The argument and the result
// are logarithms of factors.
func clampShift(log float64) float64 {
	most := math.Log(maxShift)
	return max(-most, min(log, most))
}
