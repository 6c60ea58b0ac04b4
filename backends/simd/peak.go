package simd

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/workers"
)

// Peak measures the CPU's peak rate of multiply-adds, in FLOP/s, on GOMAXPROCS cores. It uses the
// kernels' instructions for type t, with operands in registers. It returns the best rate of several
// tries, and the name of the instructions. The tries together take some tenths of a second.
//
// On arm64 the instructions are float32 FMLA for every type. A kernel that multiplies bf16 by
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

// peakLoop runs n rounds of independent multiply-adds.
type peakLoop struct {
	name  string
	run   func(n int)
	flops float64 // of a round
}

// rate returns the FLOP/s of l on all cores, averaged over the given number of measurements. Each
// takes some milliseconds.
func (l peakLoop) rate(times int) float64 {
	const rounds = 1 << 14
	start := time.Now()
	for range times {
		onAll(func() { l.run(rounds) })
	}
	return l.flops * rounds * chunks * float64(times*workers.Procs()) / time.Since(start).Seconds()
}

// portableLoop is the loop in Go, for builds and CPUs without assembly.
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

// chunks is the number of calls of a loop per core. Goroutines take the calls one by one, so a core
// that also runs other processes does not delay the rest.
const chunks = 64

// onAll calls f on all cores. The number of calls per core is the constant chunks.
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
