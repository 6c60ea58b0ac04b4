package main

import (
	"runtime"

	"github.com/flashkit-go/flashkit/internal/workers"
)

// If Go may use only one processor, calls use one goroutine, and the Go runtime gets more
// processors. After a call the runtime's monitor thread keeps the C thread's processor for a while.
// Calls of other C threads meanwhile use the other processors. schedule.c has the other half.
func init() {
	if runtime.GOMAXPROCS(0) == 1 {
		workers.Fix(1)
		runtime.GOMAXPROCS(8)
	}
}
