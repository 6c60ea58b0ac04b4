package wasm

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// The constants of kernel.c's ABI.
const (
	magic   = 0x4b484c46
	version = 3
	tile    = 128 // rows of a tensor in the stage, and keys of a block
	strip   = 64  // keys that the backward kernel processes at a time
	maxDim  = 1 << 20
	maxRow  = 1 << 30

	flagFirst, flagLast, flagScaled, flagMore = 1, 2, 4, 8
)

const (
	maxMemory  = 65535 << 16 // maximum bytes of an instance, as the module declares
	blockWords = 48
	lowest     = 1 << 16 // upper bound of an instance's first free byte
)

// A plan determines how a call is split into module calls. It depends only on the call and the
// kernel, not on the number of workers. The bits of the result therefore do not depend on the
// workers, either.
type plan struct {
	c     *flashkit.Call
	v     *variant
	rows  int // query rows per tile
	step  int // keys per module call, a multiple of tile
	chunk int // keys in memory at a time, a multiple of tile

	function string // module function for rows
	features uint32 // feature bits for the module
	pairs    bool   // the stage has tiles of bias or mask
	repeats  uint32 // feature bits of bias and mask, each set if all query rows share one row of the tensor
	bias     biasSum
	batch    int // KV heads per batch, 0 without batches
}

// callFlops returns the maximum FLOPs of a module call. This maximum keeps the call below a
// millisecond, because a long call delays the garbage collector and cancellation.
func (v *variant) callFlops() float64 { return v.rate / 2000 }

// featureFlops is the cost of features per (row, key) pair, in FLOPs.
const featureFlops = 100

// newPlan returns the plan of a call. It assumes that a batch fits in the memory of an instance.
func newPlan(v *variant, c *flashkit.Call) plan {
	x := plan{c: c, v: v, features: moduleFeatures(c), repeats: rowsAlike(c), pairs: c.Score.Bias || hidesPairs(c), bias: newBiasSum(c)}
	pair := 2 * float64(c.Dim+c.VDim) // FLOPs per row and key
	if v.pass == flashkit.PassBackward {
		pair *= 2.5
	}
	if x.function = v.rows; x.features != 0 {
		x.function = v.featureRows
		pair += featureFlops
	}
	rows, keys := tile, tile
	if v.pass == flashkit.PassBackward {
		rows, keys = strip, strip
	}
	x.rows = min(rows, max(8, int(v.callFlops()/pair/float64(keys))/8*8))
	x.step = max(1, int(v.callFlops()/pair/float64(x.rows*tile))) * tile
	if x.pairs {
		x.step = tile
	}
	x.chunk = roundUp(c.KVLen, tile)
	if v.pass == flashkit.PassBackward {
		x.chunk = min(x.chunk, max(minChunk, min(maxChunk, roundUp(c.KVLen*x.owners()/minItems, tile))))
	}
	x.batch = x.batchSize()
	return x
}

// The backward pass keeps a chunk of keys and their gradients in memory and loops over the query
// rows. With few heads, small chunks occupy more workers. Each chunk packs the query rows again, so
// large chunks need less packing.
const (
	minChunk = 128
	maxChunk = 512
	minItems = 16
)

func roundUp(n, to int) int { return (n + to - 1) / to * to }

func ceil(n, by int) int { return (n + by - 1) / by }

func (x *plan) heads() int { return x.c.Batch * x.c.KVHeads }

func (x *plan) group() int { return x.c.Heads / x.c.KVHeads }

// tiles returns the number of tiles for the given number of query rows.
func (x *plan) tiles(rows int) int { return ceil(rows, x.rows) }

func (x *plan) chunks() int {
	if x.chunk == 0 {
		return 0
	}
	return ceil(x.c.KVLen, x.chunk)
}

// owners returns the number of items for each chunk of keys. Normally each KV head of each sequence
// has its own item, but heads that share elements of dBias have one item together.
func (x *plan) owners() int {
	n := x.heads()
	if n > 0 && x.bias.allSeqs {
		n /= x.c.Batch
	}
	if x.bias.allHeads {
		n /= x.c.KVHeads
	}
	return n
}

// items returns the number of items that workers can run in parallel.
func (x *plan) items() int {
	if x.batch > 0 {
		return ceil(x.heads(), x.batch)
	}
	if x.v.pass == flashkit.PassBackward {
		return x.owners() * x.chunks()
	}
	if x.v.isDecode() {
		if x.c.QLen == 0 {
			return 0
		}
		return x.heads()
	}
	if equalRows(x.c) {
		return x.heads() * x.group() * x.tiles(x.c.QLen)
	}
	n := 0
	for b := range x.c.Batch {
		n += x.tiles(x.c.Seq(b).N)
	}
	return n * x.c.Heads
}

// equalRows reports whether all sequences have QLen rows. Such a call may have more sequences than
// a loop can visit, because no array lists their lengths.
func equalRows(c *flashkit.Call) bool {
	return c.Args == nil || c.Args.Seqs == nil || c.Args.Seqs.QLens == nil && c.Args.Seqs.QStarts == nil
}

// tileRows returns the rows of query tile t of a sequence and the range of keys that they see.
func (x *plan) tileRows(s *flashkit.Seq, t int) (i0, i1, lo, hi int) {
	i0 = t * x.rows
	i1 = min(i0+x.rows, s.N)
	lo, _ = s.Keys(i0)
	_, hi = s.Keys(i1 - 1)
	return i0, i1, lo, max(lo, hi)
}

// places holds the memory offsets of the parameter block, the stage and scratch. The stage is the
// memory for rows of the tensors that the host copies.
type places struct {
	block                           uint64
	q, k, v, o, lse, dout, dlse, dq uint64
	bias, mask, dbias               uint64 // 0 if absent
	rawK, rawV                      uint64 // 16-bit K and V for decode, 0 if K and V have 32 bits
	scratch, scratchBytes           uint64
	end                             uint64
}

// place lays out an instance's memory. The first free byte is at the offset from.
func (x *plan) place(from uint64) places {
	if x.batch > 0 {
		w, _ := x.placeBatch(from, x.batch)
		return w
	}
	at := from
	take := func(floats uint64) uint64 {
		here := (at + 63) &^ 63
		at = here + 4*floats
		return here
	}
	if x.v.isDecode() {
		w := x.placeDecode(take)
		w.end = at
		return w
	}
	d, dv := uint64(x.c.Dim), uint64(x.c.VDim)
	w := places{block: take(blockWords), q: take(tile * d), k: take(tile * d), v: take(tile * dv), o: take(tile * dv), lse: take(tile)}
	if x.v.pass == flashkit.PassBackward {
		w.dout, w.dlse, w.dq = take(tile*dv), take(tile), take(tile*d)
	}
	if x.c.Score.Bias {
		w.bias = take(tile * tile)
		if x.v.pass == flashkit.PassBackward {
			w.dbias = take(tile * tile)
		}
	}
	if hidesPairs(x.c) {
		w.mask = take(tile * tile / 4)
	}
	w.scratchBytes = x.scratch()
	w.scratch = take(w.scratchBytes / 4)
	w.end = at
	return w
}

// memory returns the bytes that an instance needs for the plan, rounded up to whole pages.
func (x *plan) memory() uint64 { return (x.place(lowest).end + pageBytes - 1) / pageBytes * pageBytes }

// scratch returns the size in bytes of the module's scratch memory. place_forward and
// place_backward in kernel.c compute the same size.
func (x *plan) scratch() uint64 {
	d8, dv8 := uint64(roundUp(x.c.Dim, 8)), uint64(roundUp(x.c.VDim, 8))
	floats := tile*(4*d8+2*dv8) + 3*tile + // Q, O and its total, m, l and its total
		4*tile + 16*tile // S, P
	if x.v.pass == flashkit.PassBackward {
		floats = tile*(4*d8+2*dv8) + 2*tile + 4 + // Q and dO twice, dQ and its total, LSE, delta, finite
			8*tile + 32*tile + tile*strip // S, dP, P, dS, dS'
	}
	return x.scratchKeys() + 4*floats
}

// scratchKeys returns the size in bytes of the scratch areas that persist between tiles of query
// rows. These areas come first in scratch.
func (x *plan) scratchKeys() uint64 {
	d8, dv8, keys := uint64(roundUp(x.c.Dim, 8)), uint64(roundUp(x.c.VDim, 8)), uint64(x.chunk)
	floats := keys*(d8+dv8) + (keys/tile+3)&^3 // K, V, finite
	if x.v.pass == flashkit.PassBackward {
		floats = keys*(10*d8+6*dv8) + (keys/tile+3)&^3 // K twice, V, dK and dV and their totals, finite
	}
	return 4 * floats
}

// scale returns the softmax scale for the module, clamped to the positive finite float32 numbers.
func (x *plan) scale() float32 {
	return float32(min(max(x.c.SoftmaxScale(), math.SmallestNonzeroFloat32), math.MaxFloat32))
}
