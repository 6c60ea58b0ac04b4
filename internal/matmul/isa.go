package matmul

// An isa holds the routines of an instruction set. The declarations of the assembly functions
// document the routines. If an isa has no routines, portable Go computes its products. The field
// lanes is the number of columns of a vector, and tile the number of rows of a tile of C. A panel
// of B has up to three vectors.
//
// Pointers passed to routines escape, because the calls go through variables. They must therefore
// point to workspace or to the caller's memory, or each call would allocate.
type isa struct {
	name        string
	rounded     func() *isa // returns the isa for BF16; nil if it is this isa
	int8        func() *isa // returns the isa for Int8; nil if it is this isa
	lanes, tile int
	flops       float64 // approximate FLOP per nanosecond
	rows        int     // most rows of an item
	block       int     // floats of A's rows that fit the L2 cache together with a panel
	wide        int     // vectors of a wide panel
	depth       int     // pairs and integers pad K to a multiple of depth
	adds        bool    // multiply can add to C
	tiles       bool    // AMX in bf16: multiply writes only sums, in whole tiles
	tilesInt8   bool    // AMX in 8 bits: rows of A are in tiles, as in blockHeld
	groupInt8   int     // Int8: the number of rows of B that are together; if it is 2, A holds 16-bit integers
	offsetInt8  bool    // Int8: A holds unsigned integers
	fetch       []int   // numbers of tiles that multiply can spread prefetches over, ascending from 1

	multiply  [3]multiplyFunc
	vector    vectorFunc   // one row of A; nil if multiply does this work
	widen     [3]widenFunc // A in float32, B in pairs
	pairs     [3]pairsFunc // A in pairs that roundRows made, B in pairs
	roundRows func(dst *uint32, dstStep, dstNext int, src *float32, srcStep, n, rows int)
	finish    [activations]finishFunc
	slope     [activations]slopeFunc // nil for None
	extent    extentFunc             // Int8: these four are nil in portable Go
	scale     scaleFunc
	quantize  quantizeFunc
	dots      dotsFunc
	transpose func(dst *float32, dstStep, dstNext int, src *float32, srcStep, srcNext int, by *float32, blocks int)
}

type (
	multiplyFunc = func(sums, a, b *float32, aRow, k, rows, add int, c *float32, cStep int, bias *float32, ahead *byte, fetch int)
	vectorFunc   = func(sums, a, b *float32, bStep, k, add int, c, bias *float32)
	widenFunc    = func(sums, a *float32, b *uint32, aRow, k, rows, add int, c *float32, cStep int, bias *float32, ahead *byte, fetch int)
	pairsFunc    = func(sums *float32, a, b *uint32, aRow, k, rows, add int, c *float32, cStep int, bias *float32, ahead *byte, fetch int)
	finishFunc   = func(c *float32, cStep int, sums *float32, sumStep int, bias, before *float32, beforeStep int, residual *float32, residualStep, rows, cols, add int)
	slopeFunc    = func(dx, x, dy *float32, n int)
)

const (
	mostLanes = 16
	mostWidth = 3 * mostLanes

	vectorPanels = 4 // wide panels that vector multiplies at a time
)

var portable = isa{name: "portable", lanes: 4, tile: 2, flops: 2, rows: 128, block: 1 << 18, wide: 3, depth: 4, groupInt8: 4}

// chosen is the best instruction set of this machine.
var chosen = available()[0]

// of returns the isa for a precision.
func (u *isa) of(p Precision) *isa {
	if p == BF16 && u.rounded != nil {
		return u.rounded()
	}
	if p == Int8 && u.int8 != nil {
		return u.int8()
	}
	return u
}

// MultipliesBF16 reports whether the processor has instructions for products of bf16, so that they are
// faster than float32.
func MultipliesBF16() bool { return chosen.rounded != nil }

// goes reports whether portable Go computes the products, because the isa has no routines.
func (u *isa) goes() bool { return u.multiply[0] == nil && u.pairs[0] == nil }

// pairsOf returns the number of pairs that hold k elements of bf16, with their padding.
func (u *isa) pairsOf(k int) int { return (k + u.depth - 1) / u.depth * u.depth / 2 }
