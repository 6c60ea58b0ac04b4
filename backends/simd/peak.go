package simd

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/workers"
)

// Peak measures the multiply-adds that the CPU does at most, in FLOP/s, with the
// instructions that the kernels use for the type, in registers and on as many
// cores as GOMAXPROCS. It returns the best of several tries, which take a few
// tenths of a second together, and the name of those instructions.
//
// On arm64 they are FMLA of float32 for every type. A kernel that multiplies bf16 by
// BFMMLA may exceed that rate.
func Peak(t flashkit.DType) (rate float64, instructions string) {
	const tries = 32
	for _, l := range peakLoops(t) {
		for range tries {
			if r := l.rate(1); r > rate {
				rate, instructions = r, l.name
			}
		}
	}
	return rate, instructions
}

// A peakLoop does n rounds of independent multiply-adds.
type peakLoop struct {
	name  string
	run   func(n int)
	flops float64 // of a round
}

// rate measures FLOP/s on all cores, over so many times a few milliseconds.
func (l peakLoop) rate(times int) float64 {
	const rounds = 1 << 14
	start := time.Now()
	for range times {
		onAll(func() { l.run(rounds) })
	}
	return l.flops * rounds * chunks * float64(times*workers.Procs()) / time.Since(start).Seconds()
}

// portableLoop is for CPUs without assembly: what the compiler makes of it.
var portableLoop = peakLoop{"scalar", portablePeak, 16}

func portablePeak(n int) {
	var x0, x1, x2, x3, x4, x5, x6, x7 float32
	a, b := 1/float32(n+1), float32(n)
	for range n {
		x0, x1, x2, x3 = x0*a+b, x1*a+b, x2*a+b, x3*a+b
		x4, x5, x6, x7 = x4*a+b, x5*a+b, x6*a+b, x7*a+b
	}
	runtime.KeepAlive(x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7)
}

// Work is taken in chunks, as kernels take theirs, so that a core that the
// machine lends to others for a while does not hold up the rest.
const chunks = 64

// onAll calls f chunks times for each core.
func onAll(f func()) {
	var wait sync.WaitGroup
	var next atomic.Int64
	total := int64(chunks * workers.Procs())
	for range workers.Procs() {
		wait.Go(func() {
			for next.Add(1) <= total {
				f()
			}
		})
	}
	wait.Wait()
}
