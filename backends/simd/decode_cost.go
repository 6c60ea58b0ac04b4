//go:build (amd64 || arm64) && !purego

package simd

import "github.com/flashkit-go/flashkit"

// halfRow is the factor of the time of a row of Q and O that is converted from and to 16 bits.
const halfRow = 1.25

// widenedElement is the time, in nanoseconds, to convert an element of a block of K or V to float32 in a buffer.
const widenedElement = .15

// times returns the predicted times of the chunks and of their merge. The products of a key take
// the time of their arithmetic, or the time of reading K and V if this is longer. The arithmetic is
// counted for whole register tiles.
func (isa *decodeRoutines) times(pl *plan) [3]timedPhase {
	t, c := isa.adapted(&isa.pace), pl.call
	element := t.element
	if c.KVType() != flashkit.Float32 {
		element = t.widen
	}
	dims, pair, widened := float64(c.Dim+c.VDim), t.pair+decodePairTime(c), 0.
	if c.KVType().Size() == 2 && !pl.decode.short && !isa.inPlace(c.KVType(), &c.Problem) {
		widened = widenedElement * dims
	}
	return decodeTimes(pl, &t, decodeItemTime, 0, func(n int) float64 {
		rows := float64(ceilDiv(n, isa.rows) * isa.rows)
		return max(2*dims*rows*t.flop, dims*element) + widened + rows*pair
	})
}

// decodePairTime returns the features' time per row and key, in nanoseconds.
func decodePairTime(c *flashkit.Call) (sum float64) {
	asked := c.Features()
	for _, f := range decodeFeatureTimes {
		if asked&f.feature != 0 {
			sum += f.pair
		}
	}
	return sum
}

var decodeFeatureTimes = [...]struct {
	feature flashkit.Feature
	pair    float64
}{
	{flashkit.FeatureSoftcap, .4},
	{flashkit.FeatureALiBi, .2},
	{flashkit.FeatureBias, .4},
	{flashkit.FeatureMask, .5},
	{flashkit.FeatureDropout, 1},
}

// decodeItemTime is the time to begin and end an item of a decode kernel, in nanoseconds.
const decodeItemTime = 500

// shortItemTime and shortRowTime are the times to begin and end a short head, and one of its rows, in
// nanoseconds.
const shortItemTime, shortRowTime = 170, 65

// scoreRowTime is the time of the score features per row of a block, in nanoseconds.
const scoreRowTime = 41

// decodeTimes returns the phases of the chunks and of their merge. item is the time to begin and end
// an item, and block the time to begin a block of keys. key returns the time per key, for a KV head with the given
// number of rows. All times are in nanoseconds.
func decodeTimes(pl *plan, t *pace, item, block float64, key func(rows int) float64) (f [3]timedPhase) {
	chunk, start := 91., t.start // to end or merge a row of a chunk, and to begin a row of a block
	if pl.decode.short {
		item, chunk = shortItemTime, shortRowTime
	}
	if pl.p.Score != (flashkit.Score{}) {
		start += scoreRowTime
	}
	row := float64(pl.p.Dim+pl.p.VDim) * t.pack
	if pl.p.DType != flashkit.Float32 {
		row *= halfRow
	}
	for b := range pl.sequences() {
		d := pl.splitOf(b)
		x := d.span()
		keys, rows := float64(d.last-d.first), float64(d.rows)
		each := (d.blockTimes(block, start, key) + chunk*float64(d.group*seeingRows(&d.Seq)*d.chunks)) / max(1, keys)
		ends := item + rows*row
		f[0].nanoseconds += float64(d.heads) * (keys*each + ends*float64(x.Tiles))
		f[0].longest = max(f[0].longest, float64(x.Length)*each+ends)
		if d.isSplit() {
			f[1].nanoseconds += float64(d.heads) * rows * float64(d.chunks) * chunk
		}
	}
	f[0].items, f[1].items = pl.work[0].Items, pl.work[1].Items
	return f
}

// blockTimes returns the time of all blocks of a KV head. block is the time to begin a block, row the time per
// row of a block. key returns the time per key that the given number of rows see.
func (d *kvSplit) blockTimes(block, row float64, key func(rows int) float64) (sum float64) {
	allFrom, allTo := d.last, d.last // keys that all rows see
	if d.N > 0 {
		allFrom, _ = d.Keys(d.N - 1)
		_, allTo = d.Keys(0)
	}
	for from := d.first; from < d.last; {
		x, blocks := d.cut(from, d.last), 1
		if from >= allFrom && from < allTo {
			x.n, x.rows, blocks = allTo-from, d.rows, ceilDiv(allTo-from, d.block)
		}
		if x.rows > 0 {
			sum += float64(blocks)*(block+row*float64(x.rows)) + float64(x.n)*key(x.rows)
		}
		from += x.n
	}
	return sum
}
