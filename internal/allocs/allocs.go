// Package allocs measures allocations in tests.
package allocs

import (
	"testing"

	"github.com/flashkit-go/flashkit/internal/slow"
)

// attempts bounds the measurements of PerRun.
const attempts = 5

// PerRun returns the lowest average number of allocations of f in up to five measurements of
// runs calls. testing.AllocsPerRun counts the allocations of the whole process, so a garbage
// collection or a goroutine that ends makes one measurement too high. A call that allocates
// does so in every measurement. Under the race detector, PerRun calls f without a measurement and
// returns 0: a sync.Pool then forgets at random.
func PerRun(runs int, f func()) float64 {
	if slow.Race {
		f()
		return 0
	}
	lowest := testing.AllocsPerRun(runs, f)
	for i := 1; i < attempts && lowest > 0; i++ {
		lowest = min(lowest, testing.AllocsPerRun(runs, f))
	}
	return lowest
}
