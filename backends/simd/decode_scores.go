//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"
	"math/bits"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// decodeScores is a head's workspace for score features, mask and dropout. It is empty in a call
// that uses none of these. The tile routines for score features expect query rows in the lanes. In
// decode, the keys of one query row are in the lanes. So the routines process each vector of a
// query row's scores as one row of a tile.
type decodeScores struct {
	bias   []float32   // [rows][decodeStep], of the current block
	slopes []float32   // [rows]
	places []float32   // [lanes], -i/lanes for key i of a vector
	top    []float32   // [lanes], scratch for maxima that are not used
	seen   [2][]uint32 // [rows][words], a bit for each visible key of the current block, and of the block before
	bools  []bool      // [lanes], scratch for mask elements of less than a vector
	kept   []uint32    // [words+1], a bit for each weight of a row that dropout keeps
	below  uint32      // a random number below this one drops a weight
	words  int         // words of a row's bits, each with one bit per lane
}

func scoreFloats(c *flashkit.Call, rows int) int {
	words, n := decodeBlock/fewestLanes, 0
	if c.Score == (flashkit.Score{}) && !hidesPairs(c) {
		return 0
	}
	if c.Score.Bias {
		n += rows * decodeStep
	}
	if hidesPairs(c) {
		n += 2 * rows * words
	}
	return n + rows + 3*decodeWidest + words + 1
}

// hidesPairs reports whether a row may not see all keys of a block.
func hidesPairs(c *flashkit.Call) bool {
	return c.Score.Mask || c.Score.Ranges != 0 || c.QLen > 1 && !isUnbounded(c.Band)
}

func (f *decodeScores) setScores(isa *laneRoutines, j *job, ws *pool.Arena, x *itemOfKeys) {
	score := &j.p.Score
	if *score == (flashkit.Score{}) && !hidesPairs(j.call) {
		return
	}
	f.words = decodeBlock / isa.lanes
	f.top, f.places, f.slopes = ws.Take(isa.lanes), ws.Take(isa.lanes), ws.Take(x.rows)
	for i := range f.places {
		f.places[i] = -float32(i) / float32(isa.lanes)
	}
	clear(f.slopes)
	for r := range f.slopes {
		if score.ALiBi {
			h, _ := x.queryOf(x.g, r)
			f.slopes[r] = slopeOf(j.args, x.b, h)
		}
	}
	if score.Bias {
		f.bias = ws.Take(x.rows * decodeStep)
	}
	if hidesPairs(j.call) && x.rows > 0 {
		f.bools = unsafe.Slice((*bool)(unsafe.Pointer(&ws.Take(isa.lanes)[0])), isa.lanes)
		for i := range f.seen {
			f.seen[i] = takeWords(ws, x.rows*f.words)
		}
	}
	if score.Dropout != 0 {
		f.kept, f.below = takeWords(ws, f.words+1), philox.Below(score.Dropout)
	}
}

// mask sets block.seen to the bits of the visible keys, unless all rows of the block see all its
// keys. It reports whether any row sees any key.
func (f *decodeScores) mask(isa *laneRoutines, j *job, x *itemOfKeys, block *seenKeys) bool {
	ranges := j.p.Score.Ranges
	if !j.p.Score.Mask && ranges == 0 && !block.edge {
		return true
	}
	words := ceilDiv(block.n, isa.lanes)
	some, all, last, lastRow := uint32(0), true, -1, -1
	for r := range block.rows {
		h, i := x.queryOf(x.g, block.row+r)
		row, at, rowAt := f.seen[0][r*f.words:][:words], 0, 0
		if j.p.Score.Mask {
			at = j.args.Mask.Repeated(x.b, h, i) + block.from
		}
		if ranges != 0 {
			rowAt = j.args.Ranges.Repeated(x.b, h, i)
		}
		if at == last && rowAt == lastRow && (!block.edge || h > x.g*x.group) {
			copy(row, f.seen[0][(r-1)*f.words:])
			continue
		}
		last, lastRow = at, rowAt
		first, end := 0, block.n
		if block.edge {
			first, end = x.Keys(i)
			first, end = first-block.from, min(end-block.from, block.n)
		}
		if j.p.Score.Mask {
			f.setBits(isa, row, j.args.Mask.Bools()[at:][:block.n])
		}
		shown := rangesOf(j.args, ranges, x.b, h, i)
		for w := range row {
			seen := laneMask(first-w*isa.lanes, end-w*isa.lanes, isa.lanes)
			if j.p.Score.Mask {
				seen &= row[w]
			}
			if ranges != 0 {
				seen &= shown.bits(block.from+w*isa.lanes, isa.lanes)
			}
			row[w] = seen
			some |= seen
			all = all && seen == laneMask(0, block.n-w*isa.lanes, isa.lanes)
		}
	}
	if some != 0 && !all {
		block.seen = f.seen[0]
		f.seen[0], f.seen[1] = f.seen[1], f.seen[0]
	}
	return some != 0
}

func (f *decodeScores) setBits(isa *laneRoutines, row []uint32, keys []bool) {
	whole := len(keys) / isa.lanes
	if whole > 0 {
		isa.maskBits(&row[0], &keys[0], isa.lanes, whole)
	}
	if rest := keys[whole*isa.lanes:]; len(rest) > 0 {
		clear(f.bools[copy(f.bools, rest):])
		isa.maskBits(&row[whole], &f.bools[0], isa.lanes, 1)
	}
}

// adjust applies score features to the dot products of a block, and sets masked scores to -Inf.
func (f *decodeScores) adjust(isa *laneRoutines, j *job, x *itemOfKeys, block *seenKeys) {
	score := &j.p.Score
	if score.Bias {
		f.loadBias(isa, j, x, block)
	}
	if adjusts(j.call) {
		// scoreMod takes each vector of a row's scores as a row of a tile, and counts a distance of
		// 1 from one row of the tile to the next. A vector has isa.lanes keys, so distances in keys
		// are divided by isa.lanes, and the slope is multiplied by isa.lanes.
		unit, words := float32(isa.lanes), ceilDiv(block.n, isa.lanes)
		bias, places := (*float32)(nil), (*float32)(nil)
		if score.ALiBi {
			places = &f.places[0]
		}
		for r := range block.rows {
			_, i := x.queryOf(x.g, block.row+r)
			if score.Bias {
				bias = &f.bias[r*decodeStep]
			}
			slope := f.slopes[block.row+r]
			steep := math.Abs(float64(slope)) > math.MaxFloat32/float64(unit) // slope*unit overflows
			if steep {
				slope = 0
			}
			isa.scoreMod(&block.s[r*decodeStep], isa.lanes, words, &f.top[0], nil, float32(j.scale), score.Softcap,
				bias, isa.lanes, places, slope*unit, float32(block.from-i-x.Diagonal)/unit)
			if steep {
				subtractDistances(block.s[r*decodeStep:][:block.n], f.slopes[block.row+r], block.from-i-x.Diagonal)
			}
		}
	}
	if block.seen != nil {
		for r := range block.rows {
			isa.maskScores(&block.s[r*decodeStep], &block.seen[r*f.words], ceilDiv(block.n, isa.lanes), &f.top[0])
		}
	}
}

// subtractDistances subtracts slope times the distance to each key from the scores of a row. at is
// the number of keys from the row's diagonal to the first key.
func subtractDistances(s []float32, slope float32, at int) {
	for key := range s {
		s[key] -= float32(float64(slope) * math.Abs(float64(at+key)))
	}
}

func (f *decodeScores) sees(block *seenKeys, r, key int) bool {
	if block.seen == nil {
		return true
	}
	lanes := decodeBlock / f.words
	return block.seen[r*f.words+key/lanes]>>(key%lanes)&1 != 0
}

func (f *decodeScores) loadBias(isa *laneRoutines, j *job, x *itemOfKeys, block *seenKeys) {
	t, last := &j.args.Bias, -1
	for r := range block.rows {
		h, i := x.queryOf(x.g, block.row+r)
		row, at := f.bias[r*decodeStep:][:block.n], t.Repeated(x.b, h, i)+block.from
		if at == last {
			copy(row, f.bias[(r-1)*decodeStep:])
		} else {
			isa.load(row, t, at)
		}
		last = at
	}
}

func (f *decodeScores) drop(isa *laneRoutines, j *job, x *itemOfKeys, block *seenKeys) {
	if j.p.Score.Dropout == 0 {
		return
	}
	o := &j.args.Origin
	before := block.from % 8 // eight keys share random words; the block begins within the eight, after this number of keys
	words := ceilDiv(before+block.n, isa.lanes)
	for r := range block.rows {
		h, i := x.queryOf(x.g, block.row+r)
		weights := block.s[r*decodeStep:]
		for w := range words {
			first := w*isa.lanes - before
			isa.dropoutMask(&f.kept[w], 1, o.Row+i, o.Key+block.from+first, uint32(o.Head+h), uint32(o.Batch+x.b), j.args.Seed, f.below)
			for gone := ^f.kept[w] & laneMask(-first, block.n-first, isa.lanes); gone != 0; gone &= gone - 1 {
				weights[first+bits.TrailingZeros32(gone)] = 0
			}
		}
	}
}
