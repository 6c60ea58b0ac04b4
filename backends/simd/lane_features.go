//go:build (amd64 || arm64) && !purego

package simd

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// A featureScratch is what the features of a forward pass take, whatever the kernel: their
// places are around the scores of a block of keys, and after its weights. It is empty in a
// plain call.
type featureScratch struct {
	mask     keyMask
	adjusts  bool // scores are more than dot products
	drops    bool
	limit    uint32    // below which a random number drops a weight
	lanes    []float32 // the numbers of the lanes, for ALiBi
	numbers  []uint32  // of the rows of the tile at hand, in the lanes, for dropout
	part     int       // keys at hand, whose scores are made
	bias     []float32 // of these, [lanes][biasStep], or one row and no step
	biasStep int
	biasBuf  []float32 // place for it if it must be copied
	biasTile []float32 // [biasKeys][lanes]
	earlier  []float32 // a row of O
}

// biasKeys is how many keys of the bias are transposed at a time: they stay in the
// first-level cache.
const biasKeys = 32

// setFeatures makes place for blocks of so many keys. Products take step keys, all of them or
// none.
func (x *featureScratch) setFeatures(j *job, ws *pool.Arena, lanes, keys, step int) {
	score := &j.p.Score
	if *score == (flashkit.Score{}) && !j.p.Carry {
		return
	}
	x.mask, x.adjusts, x.drops = j.newMask(ws, keys, step), adjusts(j.call), score.Dropout != 0
	if score.ALiBi {
		x.lanes = ws.Take(lanes)
		for i := range x.lanes {
			x.lanes[i] = float32(i)
		}
	}
	if score.Bias {
		x.biasTile, x.biasBuf = ws.Take(lanes*biasKeys), ws.Take(lanes*biasStep(keys))
	}
	if x.drops {
		x.limit, x.numbers = philox.Below(score.Dropout), takeWords(ws, lanes)
	}
	if j.p.Carry {
		x.earlier = ws.Take(upToTiles(j.p.VDim))
	}
}

// featureFloats returns the floats that setFeatures takes.
func (pl *plan) featureFloats(lanes, keys int) int {
	n, score := pl.keyMaskFloats(keys), &pl.p.Score
	if score.ALiBi {
		n += lanes
	}
	if score.Bias {
		n += lanes * (biasKeys + biasStep(keys))
	}
	if score.Dropout != 0 {
		n += lanes
	}
	if pl.p.Carry {
		n += upToTiles(pl.p.VDim)
	}
	return n
}

// beginScores returns the maximum that the routine of the scores of keys raises: the rows'
// own, or one that nobody looks at where the scores are not final. It then best takes step keys
// at a time.
func (x *laneScratch) beginScores(t *laneTile, keys int, masked bool) (top *float32, step int) {
	copy(x.top, t.m)
	x.part = keys
	switch {
	case x.adjusts:
		return &x.scratchMax[0], scoreKeys
	case masked:
		return &x.scratchMax[0], keys
	}
	return &x.top[0], keys
}

// scoreKeys is how many keys' scores are made of their dot products at a time, while these
// are in the first-level cache.
const scoreKeys = 64

// endScores makes scores of the dot products of n keys, number i of those from a given one
// on, and raises the maxima of the rows.
func (isa *laneISA) endScores(j *job, t *laneTile, x *laneScratch, from, i, n int, masked bool) {
	if x.adjusts {
		top := &x.top[0]
		if masked {
			top = &x.scratchMax[0] // it counts hidden keys
		}
		isa.adjustScores(j, t, x, from, i, n, top)
	}
	if masked {
		isa.maskScores(&x.s[i*isa.lanes], &x.masks[i], n, &x.top[0])
	}
}

// adjustScores scales and caps dot products, and adds bias and slope.
func (isa *laneISA) adjustScores(j *job, t *laneTile, x *laneScratch, from, i, n int, top *float32) {
	score, scale, slope := &j.p.Score, float32(j.scale), float32(0)
	var lanes *float32
	step := n
	if score.ALiBi {
		slope, lanes = j.slope(&t.seq), &x.lanes[0]
	}
	if score.Bias {
		step = biasKeys
		if i == 0 {
			isa.loadBias(j, t, x, from, x.part)
		}
		isa.fetchBias(j, t, len(x.masks), from+i, n)
	}
	for end := i + n; i < end; i += step {
		n := min(step, end-i)
		var bias *float32
		if score.Bias {
			bias = &x.biasTile[0]
			isa.toLanes(x.biasTile, x.bias[i:], x.biasStep, isa.blocks(n))
		}
		isa.scoreMod(&x.s[i*isa.lanes], isa.lanes, n, top, nil, scale, score.Softcap, bias, isa.lanes,
			lanes, slope, float32(from+i-t.from-t.seq.Diagonal))
	}
}

// slope returns the slope of ALiBi of the head at hand.
func (j *job) slope(s *seqTile) float32 {
	return slopeOf(j.args, s.b, s.h)
}

// biasOf returns where the bias of n rows, from a given one on, and of keys from a given one
// on begins, how many rows it has, and the elements from row to row.
func (j *job) biasOf(s *seqTile, row, n, key int) (at, rows, step int) {
	b := &j.args.Bias
	at = b.Repeated(s.b, s.h, row) + key
	if b.Shape()[2] == 1 {
		return at, 1, 0
	}
	return at, n, b.Strides()[2]
}

// fetchBias begins to bring into the cache what follows the bias of keys, from a given one
// on: that of the item's next tile, or of its first one and the next block of so many keys.
func (isa *laneISA) fetchBias(j *job, t *laneTile, block, from, keys int) {
	row := t.from + isa.lanes
	if row >= t.seq.to {
		row, from = t.seq.from, from+block
	}
	if keys = min(keys, t.seq.M-from); keys <= 0 {
		return
	}
	b := &j.args.Bias
	at, rows, step := j.biasOf(&t.seq, row, min(isa.lanes, t.seq.to-row), from)
	if b.DType() == flashkit.Float32 {
		isa.fetch((*byte)(unsafe.Pointer(&b.Float32s()[at])), 4*step, 4*keys, rows)
	} else {
		isa.fetch((*byte)(unsafe.Pointer(&b.Uint16s()[at])), 2*step, 2*keys, rows)
	}
}

// loadBias makes the bias of keys the one at hand. It is copied if it is of 16 bits, or the
// transposition, which takes whole blocks, would read beyond its rows.
func (isa *laneISA) loadBias(j *job, t *laneTile, x *laneScratch, from, keys int) {
	b := &j.args.Bias
	at, rows, step := j.biasOf(&t.seq, t.from, t.n, from)
	whole := from+isa.blocks(keys) <= b.Shape()[3] && (rows == isa.lanes || step == 0)
	if b.DType() == flashkit.Float32 && whole {
		x.bias, x.biasStep = b.Float32s()[at:], step
		return
	}
	x.bias, x.biasStep = x.biasBuf, min(step, biasStep(len(x.masks)))
	for r := range rows {
		isa.load(x.bias[r*x.biasStep:][:keys], b, at+r*step)
	}
}

// blocks rounds n up to what transpose takes.
func (isa *laneISA) blocks(n int) int { return ceilDiv(n, isa.block) * isa.block }

// biasStep is the distance of rows of the bias of so many keys: no power of two, or they
// would fall on the same cache lines.
func biasStep(keys int) int { return keys + 16 }

// drop sets the weights to 0 that dropout drops, after they have been summed.
func (isa *laneISA) drop(j *job, t *laneTile, x *laneScratch, from, keys int) {
	if !x.drops {
		return
	}
	o := &j.args.Origin
	isa.numberRows(j, t, x)
	isa.dropWeights(&x.s[0], keys, o.Key+from, &x.numbers[0], uint32(o.Head+t.seq.h), uint32(o.Batch+t.seq.b), j.args.Seed, x.limit)
}

// numberRows sets the numbers of the tile's rows in the whole.
func (isa *laneISA) numberRows(j *job, t *laneTile, x *laneScratch) {
	for i := range x.numbers {
		x.numbers[i] = uint32(j.args.Origin.Row + t.from + i)
	}
}
