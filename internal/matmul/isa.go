package matmul

// An isa holds the routines of an instruction set, which their declarations document. A vector has
// lanes columns, a panel of B up to three vectors, a tile of C tile rows. Without routines, Go does
// the work.
//
// Pointers passed to routines escape, because the calls go through variables: they must point to
// workspace or the caller's memory.
type isa struct {
	name        string
	rounded     func() *isa // routines for BF16; nil: these
	lanes, tile int
	flops       float64 // per nanosecond, approximately
	rows        int     // most rows of an item
	block       int     // floats of rows of A that fit the L2 cache with a panel
	wide        int     // vectors of a panel
	depth       int     // K of pairs is padded to a multiple of it
	adds        bool    // multiply can add to C
	tiles       bool    // AMX: multiply writes only sums, in whole tiles
	fetch       []int   // numbers of tiles that multiply can spread prefetches over, ascending from 1

	multiply  [3]multiplyFunc
	widen     [3]widenFunc // float32 by pairs
	pairs     [3]pairsFunc // pairs from roundRows by pairs
	roundRows func(dst *uint32, dstStep int, src *float32, srcStep, n, rows int)
	finish    [activations]finishFunc
	slope     [activations]slopeFunc // nil for None
	transpose func(dst *float32, dstStep, dstNext int, src *float32, srcStep, srcNext int, by *float32, blocks int)
}

type (
	multiplyFunc = func(sums, a, b *float32, aRow, k, rows, add int, c *float32, cStep int, bias *float32, ahead *byte, fetch int)
	widenFunc    = func(sums, a *float32, b *uint32, aRow, k, rows, add int, c *float32, cStep int, bias *float32, ahead *byte, fetch int)
	pairsFunc    = func(sums *float32, a, b *uint32, aRow, k, rows, add int, c *float32, cStep int, bias *float32, ahead *byte, fetch int)
	finishFunc   = func(c *float32, cStep int, sums *float32, sumStep int, bias, before *float32, beforeStep int, residual *float32, residualStep, rows, cols, add int)
	slopeFunc    = func(dx, x, dy *float32, n int)
)

const (
	mostLanes = 16
	mostWidth = 3 * mostLanes
)

var portable = isa{name: "portable", lanes: 4, tile: 2, flops: 2, rows: 128, block: 1 << 18, wide: 3, depth: 2}

// chosen is the best instruction set of this machine.
var chosen = available()[0]

// of returns the routines for a precision.
func (u *isa) of(p Precision) *isa {
	if p == BF16 && u.rounded != nil {
		return u.rounded()
	}
	return u
}

// goes reports whether Go does the work, without routines.
func (u *isa) goes() bool { return u.multiply[0] == nil && u.pairs[0] == nil }

// pairsOf returns the number of pairs that hold k elements of bf16.
func (u *isa) pairsOf(k int) int { return (k + u.depth - 1) / u.depth * u.depth / 2 }
