package wasm

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// What kernel.c says of itself.
const (
	magic   = 0x4b484c46
	version = 3
	tile    = 128 // rows of the stage, and keys of a block
	strip   = 64  // keys that the backward pass takes at a time
	maxDim  = 1 << 20
	maxRow  = 1 << 30

	flagFirst, flagLast, flagScaled, flagMore = 1, 2, 4, 8
)

const (
	maxMemory  = 65535 << 16 // bytes; the module declares the same
	blockWords = 48
	lowest     = 1 << 16 // an instance's first free byte lies below
)

// A plan is how a call is cut into calls of the module. It depends on the call and the
// kernel alone, not on the number of workers, and so do the bits of the result.
type plan struct {
	c     *flashkit.Call
	v     *variant
	rows  int // query rows of a tile
	step  int // keys of a call, a multiple of tile
	chunk int // keys that are in memory at a time, a multiple of tile

	function string // of the module, for rows
	features uint32 // that the module is told of
	pairs    bool   // it gets, or gives, tiles of numbers for pairs of rows and keys
	repeats  uint32 // features of which all rows have the same numbers
	bias     biasSum
	batch    int // KV heads that one entry of the module computes, 0 if it takes one tile of rows
}

// callFlops keeps a call under a millisecond: while one runs, neither the
// garbage collector nor a canceled context gets its turn.
func (v *variant) callFlops() float64 { return v.rate / 2000 }

// featureFlops is what features add to a pair of a row and a key, as if it were FLOPs.
const featureFlops = 100

// newPlan returns the plan of a call by a kernel whose instances may have at least what one head needs.
func newPlan(v *variant, c *flashkit.Call) plan {
	x := plan{c: c, v: v, features: moduleFeatures(c), repeats: rowsAlike(c), pairs: c.Score.Bias || c.Score.Mask, bias: newBiasSum(c)}
	pair := 2 * float64(c.Dim+c.VDim) // FLOPs of a row and a key
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

// The backward pass keeps a chunk of the keys in memory with their gradients,
// and walks the query rows. Small chunks give several workers something to do
// when there are few heads; large ones pack the query rows less often.
const (
	minChunk = 128
	maxChunk = 512
	minItems = 16
)

func roundUp(n, to int) int { return (n + to - 1) / to * to }

func ceil(n, by int) int { return (n + by - 1) / by }

func (x *plan) heads() int { return x.c.Batch * x.c.KVHeads }

func (x *plan) group() int { return x.c.Heads / x.c.KVHeads }

// tiles returns the number of tiles of so many query rows.
func (x *plan) tiles(rows int) int { return ceil(rows, x.rows) }

func (x *plan) chunks() int {
	if x.chunk == 0 {
		return 0
	}
	return ceil(x.c.KVLen, x.chunk)
}

// owners is how many workers could have the gradients of a chunk of the keys. A head
// owns those of its keys; heads that share a gradient of the bias have one owner.
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

// items is how many workers could find something to do.
func (x *plan) items() int {
	if x.batch > 0 {
		return ceil(x.heads(), x.batch)
	}
	if x.v.pass == flashkit.PassBackward {
		return x.owners() * x.chunks()
	}
	if x.v.few() {
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

// equalRows reports whether nothing says that sequences differ in rows. There may then
// be more of them than anybody could walk, as nothing backs them.
func equalRows(c *flashkit.Call) bool {
	return c.Args == nil || c.Args.Seqs == nil || c.Args.Seqs.QLens == nil && c.Args.Seqs.QStarts == nil
}

// tileRows returns the rows of query tile t of a sequence, and the keys that they see.
func (x *plan) tileRows(s *flashkit.Seq, t int) (i0, i1, lo, hi int) {
	i0 = t * x.rows
	i1 = min(i0+x.rows, s.N)
	lo, _ = s.Keys(i0)
	_, hi = s.Keys(i1 - 1)
	return i0, i1, lo, max(lo, hi)
}

// places are the offsets of the block in memory, of the stage and of scratch.
type places struct {
	block                           uint64
	q, k, v, o, lse, dout, dlse, dq uint64
	bias, mask, dbias               uint64 // 0 without
	rawK, rawV                      uint64 // of decode, 0 if K and V have 32 bits
	scratch, scratchBytes           uint64
	end                             uint64
}

// place lays out the memory from the first free byte on.
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
	if x.v.few() {
		w := x.placeFew(take)
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
	if x.c.Score.Mask {
		w.mask = take(tile * tile / 4)
	}
	w.scratchBytes = x.scratch()
	w.scratch = take(w.scratchBytes / 4)
	w.end = at
	return w
}

// memory returns the bytes of an instance that runs the plan, whole pages.
func (x *plan) memory() uint64 { return (x.place(lowest).end + pageBytes - 1) / pageBytes * pageBytes }

// scratch returns the bytes that kernel.c takes: place_fwd and place_bwd there.
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

// scratchKeys returns the bytes of scratch that outlast a tile of query rows. They come first.
func (x *plan) scratchKeys() uint64 {
	d8, dv8, keys := uint64(roundUp(x.c.Dim, 8)), uint64(roundUp(x.c.VDim, 8)), uint64(x.chunk)
	floats := keys*(d8+dv8) + (keys/tile+3)&^3 // K, V, finite
	if x.v.pass == flashkit.PassBackward {
		floats = keys*(10*d8+6*dv8) + (keys/tile+3)&^3 // K twice, V, dK and dV and their totals, finite
	}
	return 4 * floats
}

// scale returns the factor of the scores as the kernel takes it: the smallest
// positive number rather than 0, the largest rather than infinity.
func (x *plan) scale() float32 {
	return float32(min(max(x.c.SoftmaxScale(), math.SmallestNonzeroFloat32), math.MaxFloat32))
}
