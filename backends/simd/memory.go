package simd

import (
	"unsafe"

	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// memory returns the bytes that a planned call needs beside its tensors: workspace, counters and tables.
func (pl *plan) memory() float64 {
	others := 0.
	if pl.decode.turns > 1 {
		others = float64(pool.Size(pl.workers, pl.work[0])) * float64(unsafe.Sizeof(otherHeads{}))
	}
	return 4*pool.Floats(pl.workers, pl.work[:]...) + 4*float64(pl.shared) + 8*float64(pl.counters) + pl.tableBytes() + others
}
