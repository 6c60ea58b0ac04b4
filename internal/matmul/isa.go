package matmul

// An isa is the routines of an instruction set, which are documented where they are
// declared. A vector has lanes columns, a panel of B up to three vectors; a tile of C has
// tile rows. Without routines, Go does the work.
//
// What a routine is given escapes, because it is called through a variable: it must be
// workspace or the caller's memory.
type isa struct {
	name        string
	rounded     func() *isa // for BF16; nil is this one
	lanes, tile int
	flops       float64 // in a nanosecond, about
	rows        int     // of an item, at most
	block       int     // floats of rows of A that stay in the second-level cache beside a panel
	wide        int     // vectors of a panel
	depth       int     // of which K of pairs is made a multiple
	adds        bool    // multiply adds to C itself, too
	tiles       bool    // of AMX: multiply writes sums alone, of as many rows as fill tiles
	fetch       []int   // tiles during which multiply may prefetch, from 1 up

	multiply  [3]multiplyFunc
	widen     [3]widenFunc // float32 with pairs
	pairs     [3]pairsFunc // pairs with pairs, which roundRows makes
	roundRows func(dst *uint32, dstStep int, src *float32, srcStep, n, rows int)
	finish    [activations]finishFunc
	slope     [activations]slopeFunc // that of None is nil
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

// chosen is the best of this machine.
var chosen = available()[0]

// of returns the routines of a precision.
func (u *isa) of(p Precision) *isa {
	if p == BF16 && u.rounded != nil {
		return u.rounded()
	}
	return u
}

// goes reports whether there are no routines, and Go does the work.
func (u *isa) goes() bool { return u.multiply[0] == nil && u.pairs[0] == nil }

// pairsOf returns the pairs that k elements of bf16 take.
func (u *isa) pairsOf(k int) int { return (k + u.depth - 1) / u.depth * u.depth / 2 }
