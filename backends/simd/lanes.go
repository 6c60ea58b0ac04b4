//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// laneRoutines holds an instruction set's routines for kernels that keep query rows in the lanes of
// two or four vectors. In a backward pass, the lanes hold keys. The declarations of the assembly
// functions document the routines.
//
// Calls go through variables, so pointer arguments escape to the heap. To avoid allocations, pass
// pointers into workspace or into the caller's memory.
type laneRoutines struct {
	keys         int  // keys of a block of a forward pass
	oneBlock     int  // a sequence of at most this number of keys, at most tileBlock, is one block in a forward pass
	checksFinite bool // the instruction set has no opmasks: addValues with masks checks V for NaN and infinity
	fwdPace      pace
	shortPace    pace // of a forward pass whose tiles attendTile computes
	bwdPace      pace
	fewPace      pace            // of the backward kernel for few keys: start is an item, pack an element of K and V for each item
	adapt        func(pace) pace // adapts a pace to this processor; may be nil

	convertRoutines
	forwardRoutines
	backwardRoutines

	// Routines of both passes.
	addSum      func(sum, x *float32, rows int, alpha *float32)
	addScaled   func(sum, x *float32, rows int, alpha *float32)
	scaleRows   func(x *float32, step, n, rows int, by *float32)
	scoreMod    func(s *float32, step, rows int, rowMax, softcapGrad *float32, scale, softcap float32, bias *float32, biasStep int, lanes *float32, slope, at float32)
	maskBits    func(masks *uint32, mask *bool, step, rows int)
	fetch       func(from *byte, step, bytes, rows int)
	dropWeights func(s *float32, keys, key int, rows *uint32, head, batch uint32, seed uint64, below uint32)
}

// adapted returns pace c of the routines, adapted to this processor.
func (isa *laneRoutines) adapted(c *pace) pace {
	if isa.adapt == nil {
		return *c
	}
	return isa.adapt(*c)
}

// forwardRoutines have the query rows of a tile in the lanes.
type forwardRoutines struct {
	scores      func(s, k *float32, step int, q *float32, dim, keys int, rowMax, ahead *float32)
	maskScores  func(s *float32, masks *uint32, keys int, rowMax *float32)
	expScores   func(s *float32, keys int, m, rowMax, l, alpha *float32, scale float32)
	finalizeLSE func(lse, by, m, l *float32, scale float32)
	addValues   func(o, v *float32, step int, p *float32, keys, vdim int, alpha *float32, masks *uint32)
	attendTile  attendTileFunc                                  // may be nil
	queryLanes  func(queries, q *float32, qStep, dim, rows int) // nil if attendTile is
	packRows    func(dst, src *float32, step, n, rows int)      // may be nil
}

// backwardRoutines have the keys or columns of a panel in the lanes.
type backwardRoutines struct {
	dots                     func(sum, a, b *float32, dim int)
	scoresNarrow             scoresFunc // of the first half of the lanes; may be nil
	gradients                func(s, dp, ds *float32, dsStep int, masks *uint32, rows int, lse, delta *float32, scale float32)
	gradientsT               func(s, dp *float32, masks *uint32, keys int, lse, delta *float32, scale float32) // nil on arm64
	gradientsOf              func(s, dp, ds *float32, dsStep int, masks *uint32, rows int, lse, delta *float32, unit, scale float32, kept *uint32, keep float32, softcapGrad, db *float32)
	addProduct               productFunc
	addProductT              productFunc
	addProductMasked         maskedProductFunc // nil: the product takes whole vectors of columns, and rows must be padded
	addProductTMasked        maskedProductFunc
	setPanel, accumulateRows func(dst *float32, step int, src *float32, rows int)
	dropoutMask              func(kept *uint32, rows, row, key int, head, batch uint32, seed uint64, below uint32)
}

type (
	attendTileFunc    func(o *float32, oStep int, totals, k *float32, kStep int, v *float32, vStep int, queries, s *float32, masks *uint32, bias *float32, biasStep int, rows, dim, vdim, keys int, ahead *float32, scale, unit, factor float32)
	productFunc       func(c *float32, cStep int, a *float32, aStep int, b *float32, bStep, rows, n, columns int)
	maskedProductFunc func(c *float32, cStep int, a *float32, aStep int, b *float32, bStep, rows, n int, columns uint32)
)

const tileBlock = 256 // keys of a block in the AMX forward pass for bf16; no other kernel's block is larger

// upToTiles rounds n up to a multiple of tileStep.
func upToTiles(n int) int { return (n + tileStep - 1) &^ (tileStep - 1) }

func takeWords(ws *pool.Arena, n int) []uint32 { return asWords(ws.Take(n)) }

func takeInts(ws *pool.Arena, n int) []int {
	return unsafe.Slice((*int)(unsafe.Pointer(&ws.Take(2 * n)[0])), n)
}

// asWords returns the memory of x as 32-bit words.
func asWords(x []float32) []uint32 { return unsafe.Slice((*uint32)(unsafe.Pointer(&x[0])), len(x)) }

// ones are factors of 1 for up to 32 lanes.
var ones = [32]float32{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}

// nonFinite reports whether x, [dim][lanes], may hold NaN or infinity. It tests the sum of squares
// of each lane. This sum may overflow even if all elements are finite. sums is scratch.
func (isa *laneRoutines) nonFinite(x []float32, dim int, sums []float32) bool {
	isa.dots(&sums[0], &x[0], &x[0], dim)
	for _, sum := range sums {
		if !(sum <= math.MaxFloat32) {
			return true
		}
	}
	return false
}

// nonFiniteRows does the work of nonFinite for n rows of t. It groups elements by their place in
// contiguous rows, whatever the tensor's strides. buf has room for the rows.
func (isa *laneRoutines) nonFiniteRows(t *flashkit.Tensor, b, h, r, n int, buf, sums []float32) bool {
	all := n * t.Shape()[3]
	rows := buf[:all]
	if t.DType() == flashkit.Float32 && (n == 1 || rowStep(t) == t.Shape()[3]) {
		rows = t.Float32s()[t.Offset(b, h, r):][:all]
	} else {
		isa.loadRows(rows, t.Shape()[3], t, b, h, r, n)
	}
	whole := all / isa.lanes * isa.lanes
	for _, x := range rows[whole:] {
		if !(x*x <= math.MaxFloat32) {
			return true
		}
	}
	return whole > 0 && isa.nonFinite(rows, whole/isa.lanes, sums)
}
