package simd

import "github.com/flashkit-go/flashkit/backends/simd/internal/pool"

// The portable kernels work on tiles of up to tileQ query rows and tileK keys. Such tiles fit in L1
// at common head dims, and up to 64 query rows share the widening of a 16-bit key tile.
const (
	tileQ = 64
	tileK = 64
)

// ceilDiv returns the number of tiles of size that cover n rows.
func ceilDiv(n, size int) int { return (n + size - 1) / size }

// everyKey lists the indices of all keys of a tile: 0, 1, 2 and so on.
var everyKey = func() (at [tileK]int) {
	for i := range at {
		at[i] = i
	}
	return at
}()

// portableRun is the number of keys, or query rows, of a run. Each run has its own sum, because one
// float32 sum over many keys loses digits.
const portableRun = 4 * tileK

// twoSums returns two zeroed slices of n floats: one for the sums of the current run, and one for
// the sums of all finished runs.
func twoSums(ws *pool.Arena, n int) (run, past []float32) {
	x := ws.Take(2 * n)
	clear(x)
	return x[:n], x[n:]
}

// addRun adds each element of run to the element of sum with the same index. It then clears run.
// One of the slices holds sums of the current run, and the other holds sums of the finished runs.
func addRun(sum, run []float32) {
	run = run[:len(sum)]
	for i, x := range run {
		sum[i] += x
	}
	clear(run)
}
