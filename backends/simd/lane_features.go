//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// featureScratch is the workspace of the score features in a forward pass, for all kernels with
// query rows in the lanes. It is empty in a call without features.
type featureScratch struct {
	mask     keyMask
	adjusts  bool // scores differ from scaled dot products
	drops    bool
	limit    uint32    // a random number below this one drops a weight
	lanes    []float32 // lane numbers, for ALiBi
	numbers  []uint32  // numbers of the tile's rows, for dropout
	part     int       // number of keys whose scores are being computed
	bias     []float32 // bias of these keys, [lanes][biasStep], or one row with step 0
	biasStep int
	biasBuf  []float32 // a copy of the bias, if needed
	biasTile []float32 // [biasKeys][lanes]
	earlier  []float32 // with Carry, a row of O over the earlier keys
}

// biasKeys is the number of keys whose bias is transposed at a time. The transposed bias stays in
// L1.
const biasKeys = 32

// setFeatures allocates the workspace for blocks of the given number of keys. step is the number of
// keys that one product multiplies together, without skipping any.
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

// featureFloats returns the number of floats that setFeatures allocates.
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

// beginScores prepares x for the scores of keys. It returns the address at which the routine
// isa.scores must store row maxima: x.top, or scratch if endScores will change the scores. step is
// the number of keys per call of isa.scores.
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

// scoreKeys is the number of keys per call of isa.scores if features adjust the scores. The dot
// products of this number of keys stay in L1 until they are adjusted.
const scoreKeys = 64

// endScores turns the dot products of keys [from+i, from+i+n) into scores and raises the row
// maxima.
func (isa *laneRoutines) endScores(j *job, t *laneTile, x *laneScratch, from, i, n int, masked bool) {
	if x.adjusts {
		top := &x.top[0]
		if masked {
			top = &x.scratchMax[0] // scratch: this maximum includes masked keys
		}
		isa.adjustScores(j, t, x, from, i, n, top)
	}
	if masked {
		isa.maskScores(&x.s[i*isa.lanes], &x.masks[i], n, &x.top[0])
	}
}

// adjustScores scales and caps dot products, then adds bias and ALiBi.
func (isa *laneRoutines) adjustScores(j *job, t *laneTile, x *laneScratch, from, i, n int, top *float32) {
	score, scale, slope := &j.p.Score, float32(j.scale), float32(0)
	var lanes *float32
	step := n
	if score.ALiBi {
		slope, lanes = j.slope(&t.seq), &x.lanes[0]
	}
	if score.Bias {
		step = biasKeys
		if i == 0 {
			isa.loadBias(j, &x.featureScratch, &t.seq, t.from, t.n, from, x.part, false)
		}
		isa.fetchBias(j, &t.seq, t.from, len(x.masks), from+i, n)
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

// slope returns the ALiBi slope of the tile's head.
func (j *job) slope(s *seqTile) float32 {
	return slopeOf(j.args, s.b, s.h)
}

// biasOf finds the bias of query rows [row, row+n) from the given key on. at is the offset of the
// first element. If all query rows share one row of the bias, rows is 1 and step is 0. Otherwise
// rows is n, and step is the distance between rows.
func (j *job) biasOf(s *seqTile, row, n, key int) (at, rows, step int) {
	b := &j.args.Bias
	at = b.Repeated(s.b, s.h, row) + key
	if b.Shape()[2] == 1 {
		return at, 1, 0
	}
	return at, n, b.Strides()[2]
}

// fetchBias prefetches the bias of the keys [from, from+keys) for the item's tile after the tile
// that begins at row. After the last tile, it prefetches the next block's bias for the first tile.
func (isa *laneRoutines) fetchBias(j *job, s *seqTile, row, block, from, keys int) {
	if row += isa.lanes; row >= s.to {
		row, from = s.from, from+block
	}
	if keys = min(keys, s.M-from); keys <= 0 {
		return
	}
	b := &j.args.Bias
	at, rows, step := j.biasOf(s, row, min(isa.lanes, s.to-row), from)
	if b.DType() == flashkit.Float32 {
		isa.fetch((*byte)(unsafe.Pointer(&b.Float32s()[at])), 4*step, 4*keys, rows)
	} else {
		isa.fetch((*byte)(unsafe.Pointer(&b.Uint16s()[at])), 2*step, 2*keys, rows)
	}
}

// loadBias sets x.bias to the bias of query rows [row, row+n) and the given keys. This is the
// tensor's own memory if the bias is float32 and whole blocks of transpose do not read beyond the
// rows. Otherwise it is a float32 copy in x.biasBuf. If hidden is true, the elements after the keys,
// up to a whole block, are -Inf.
func (isa *laneRoutines) loadBias(j *job, x *featureScratch, s *seqTile, row, n, from, keys int, hidden bool) {
	b, padded := &j.args.Bias, isa.blocks(keys)
	at, rows, step := j.biasOf(s, row, n, from)
	whole := from+padded <= b.Shape()[3] && (rows == isa.lanes || step == 0) && !(hidden && keys < padded)
	if b.DType() == flashkit.Float32 && whole {
		x.bias, x.biasStep = b.Float32s()[at:], step
		return
	}
	x.bias, x.biasStep = x.biasBuf, len(x.biasBuf)/isa.lanes
	if step == 0 {
		x.biasStep = 0
	}
	for r := range rows {
		row := x.bias[r*x.biasStep:][:padded]
		isa.load(row[:keys], b, at+r*step)
		for i := keys; i < padded && hidden; i++ {
			row[i] = float32(math.Inf(-1))
		}
	}
}

// blocks rounds n up to whole blocks of transpose.
func (isa *laneRoutines) blocks(n int) int { return ceilDiv(n, isa.block) * isa.block }

// biasStep is the distance between rows of copied bias. It is no power of two, since rows at such a
// distance would compete for the same cache sets.
func biasStep(keys int) int { return keys + 16 }

// drop applies dropout to the weights in x.s: it sets dropped weights to 0. l already includes all
// weights, dropped or not.
func (isa *laneRoutines) drop(j *job, t *laneTile, x *laneScratch, from, keys int) {
	if !x.drops {
		return
	}
	if x.mass.on {
		copy(x.mass.copied, x.s)
	}
	o := &j.args.Origin
	isa.numberRows(j, t, x)
	isa.dropWeights(&x.s[0], keys, o.Key+from, &x.numbers[0], uint32(o.Head+t.seq.h), uint32(o.Batch+t.seq.b), j.args.Seed, x.limit)
}

// numberRows sets x.numbers to the row numbers that enter dropout's random numbers.
func (isa *laneRoutines) numberRows(j *job, t *laneTile, x *laneScratch) {
	for i := range x.numbers {
		x.numbers[i] = uint32(j.args.Origin.Row + t.from + i)
	}
}
