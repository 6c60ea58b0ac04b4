package matmul

// An isa is the routines of an instruction set, which are documented where they are
// declared. A vector has lanes columns, a panel of B up to three vectors; a tile of C has
// tile rows. Without routines, Go does the work.
//
// What a routine is given escapes, because it is called through a variable: it must be
// workspace or the caller's memory.
type isa struct {
	name        string
	lanes, tile int
	flops       float64 // in a nanosecond, about
	rows        int     // of an item, at most
	block       int     // floats of rows of A that stay in the second-level cache beside a panel
	fetch       []int   // with how many tiles multiply may prefetch, 1 among them; ascending

	multiply  [3]multiplyFunc
	finish    [activations]finishFunc
	slope     [activations]slopeFunc // that of None is nil
	transpose func(dst *float32, dstStep, dstNext int, src *float32, srcStep, srcNext int, by *float32, blocks int)
}

type (
	multiplyFunc = func(sums, a *float32, aRow int, b *float32, k, rows, add int, c *float32, cStep int, bias, ahead *float32, fetch int)
	finishFunc   = func(c *float32, cStep int, sums *float32, sumStep int, bias, before *float32, beforeStep int, residual *float32, residualStep, rows, cols, add int)
	slopeFunc    = func(dx, x, dy *float32, n int)
)

const (
	mostLanes = 16
	mostWidth = 3 * mostLanes
)

var portable = isa{name: "portable", lanes: 4, tile: 2, flops: 2, rows: 128, block: 1 << 18}

// chosen is the best of this machine.
var chosen = available()[0]
