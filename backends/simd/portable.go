package simd

import "github.com/flashkit-go/flashkit/backends/simd/internal/pool"

// The portable kernels work on tiles of up to tileQ query rows and tileK keys. They fit in L1 at
// common head dims, yet many rows share the widening of a 16-bit key tile.
const (
	tileQ = 64
	tileK = 64
)

// ceilDiv returns the number of tiles of size that cover n rows.
func ceilDiv(n, size int) int { return (n + size - 1) / size }

// everyKey lists the keys of a tile.
var everyKey = func() (at [tileK]int) {
	for i := range at {
		at[i] = i
	}
	return at
}()

// portableRun is the keys, or query rows, of a run. Each run has its own sum, as one sum of many
// keys loses digits.
const portableRun = 4 * tileK

// twoSums returns two zero sums: of the current run and of past runs.
func twoSums(ws *pool.Arena, n int) (run, past []float32) {
	x := ws.Take(2 * n)
	clear(x)
	return x[:n], x[n:]
}

// addRun adds the sum of a run to the past runs' and clears it.
func addRun(sum, run []float32) {
	run = run[:len(sum)]
	for i, x := range run {
		sum[i] += x
	}
	clear(run)
}
