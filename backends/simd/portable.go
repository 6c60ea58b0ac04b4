package simd

import "github.com/flashkit-go/flashkit/backends/simd/internal/pool"

// The portable kernels work on tiles of up to tileQ query rows and tileK keys:
// small enough for the first-level cache at common head dims, large enough that
// a key tile is widened from 16 bits once for many rows.
const (
	tileQ = 64
	tileK = 64
)

// ceilDiv returns how many tiles of the given size cover n rows.
func ceilDiv(n, size int) int { return (n + size - 1) / size }

// everyKey is the numbers of the keys of a tile.
var everyKey = func() (at [tileK]int) {
	for i := range at {
		at[i] = i
	}
	return at
}()

// portableRun is the keys, or query rows, of a run, after which the portable kernels
// begin another sum: one sum of very many keeps few digits.
const portableRun = 4 * tileK

// twoSums returns two empty sums: of the run at hand, and of those before it.
func twoSums(ws *pool.Arena, n int) (run, past []float32) {
	x := ws.Take(2 * n)
	clear(x)
	return x[:n], x[n:]
}

// addRun adds the sum of a run to that of the runs before, and clears it.
func addRun(sum, run []float32) {
	run = run[:len(sum)]
	for i, x := range run {
		sum[i] += x
	}
	clear(run)
}
