package simd

import (
	"context"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// fwd_generic computes, for each query row i,
//
//	m, l, o = -Inf, 0, 0
//	for each tile of keys that row i sees:
//		s = K·q
//		if max(s) > m: a = exp(scale*(m-max(s))); o, l, m = a*o, a*l, max(s)
//		w = exp(scale * (s - m))
//		l += sum(w); o += w·V, in runs of portableRun keys
//	O[i] = o / l; LSE[i] = scale*m + ln(l)
//
// (Milakov and Gimelshein 2018, algorithm 3; Dao et al. 2022, algorithm 1.) An
// item is one tile of query rows of one head. Every row walks exactly the keys
// that it sees, so a masked key costs nothing and cannot leak. Within a tile of keys
// all rows have their scores first, then their weights, then their values, block by
// block, so that a block stays in the cache. Calls with features have tiles of their
// own, so that plain ones do not pay for them.
func (b *Backend) fwdGeneric(ctx context.Context, c *flashkit.Call) error {
	j := b.newJob(c)
	if hasFeatures(c) {
		j.cut()
		return b.do(ctx, j, fwdFeatureTile, j.features.queryItems, fwdFeatureFloats(c, &j.features))
	}
	return b.do(ctx, j, fwdGenericTile, fwdGenericItems(c.Problem), fwdGenericFloats(c.Problem))
}

func fwdGenericFloats(p flashkit.Problem) int {
	rows, keys := tileSize(&p)
	r, k, dim, vdim := float64(rows), float64(keys), float64(p.Dim), float64(p.VDim)
	return count(r*(dim+2*(vdim+1)+1+k) + k*(dim+vdim))
}

func fwdGenericNeeds(c *flashkit.Call) flashkit.Memory {
	if hasFeatures(c) {
		f := planFeatures(c)
		return flashkit.Memory{Host: memory(c, phase{f.queryItems, fwdFeatureFloats(c, &f)}) + f.tables(c)}
	}
	return flashkit.Memory{Host: memory(c, phase{fwdGenericItems(c.Problem), fwdGenericFloats(c.Problem)})}
}

func fwdGenericItems(p flashkit.Problem) int { return p.Batch * p.Heads * ceilDiv(p.QLen, tileQ) }

var fwdGenericPace = pace{start: 430, flop: .134, pair: 19.6, element: 1.2, widen: .35}

func fwdGenericCost(c *flashkit.Call) time.Duration {
	if hasFeatures(c) {
		return cost(c, fwdFeatureTimes(c))
	}
	return cost(c, fwdGenericTimes(c.Problem))
}

// fwdGenericTimes computes no pair that is not seen, but reads the keys of a tile.
func fwdGenericTimes(p flashkit.Problem) timedPhase {
	c := &fwdGenericPace
	met, dims := pairs(&p, 1, 1), float64(p.Dim+p.VDim)
	read := readKeys(&p, tileQ, 1) * dims
	sum := float64(fwdGenericItems(p))*c.start + met*(2*dims*c.flop+c.pair) + rowElements(&p, 1)*c.element + converted(&p, read)*c.widen
	sum += halfTimes(p.KVType(), read) + halfTimes(p.DType, rowElements(&p, 1))
	return timedPhase{items: fwdGenericItems(p), nanoseconds: sum}
}

// halfTime is what the portable kernels take to widen an element of f16, which
// has its own exponent, in nanoseconds.
const halfTime = 3

// halfTimes returns the time to widen so many elements if they are of f16.
func halfTimes(t flashkit.DType, elements float64) float64 {
	if t == flashkit.Float16 {
		return elements * halfTime
	}
	return 0
}

// A queryTile is the rows [from, to) of one query head.
type queryTile struct{ b, h, kvHead, from, to int }

// queryTile returns the tile of an item. The last rows of a causal mask see the
// most keys, so they come first and the short items fill the gaps at the end.
func (j *job) queryTile(item int) queryTile {
	p := &j.p
	heads := p.Batch * p.Heads
	from := (ceilDiv(p.QLen, tileQ) - 1 - item/heads) * tileQ
	b, h := item%heads/p.Heads, item%p.Heads
	return queryTile{b, h, h / (p.Heads / p.KVHeads), from, min(from+tileQ, p.QLen)}
}

func fwdGenericTile(j *job, ws *arena, item int) {
	p, f, t := &j.p, j.args, j.queryTile(item)
	rows, width := t.to-t.from, p.VDim+1 // of o and l
	x := fwdRows{p: p, from: t.from, rows: rows, width: width}
	_, x.keys = tileSize(p)
	x.q, x.qStep = view(&f.Q, t.b, t.h, t.from, rows, ws.take(rows*p.Dim))
	x.sums, x.m, x.w = ws.take(rows*2*width), ws.take(rows), ws.take(rows*x.keys)
	clear(x.sums)
	for i := range x.m {
		x.m[i] = float32(math.Inf(-1))
	}
	kbuf, vbuf := ws.take(x.keys*p.Dim), ws.take(x.keys*p.VDim)

	first, _ := p.Keys(t.from)
	_, last := p.Keys(t.to - 1)
	for x.k0 = first; x.k0 < last; x.k0 += tileK {
		x.k1 = min(x.k0+tileK, last)
		x.k, x.kStep = view(&f.K, t.b, t.kvHead, x.k0, x.k1-x.k0, kbuf)
		x.v, x.vStep = view(&f.V, t.b, t.kvHead, x.k0, x.k1-x.k0, vbuf)
		if (x.k0-first)%portableRun == 0 {
			for i := range rows {
				addRun(x.row(i)[width:], x.row(i)[:width])
			}
		}
		if !x.scores(j) || !x.weights(j) || !x.values(j) {
			return // canceled
		}
	}
	for i := range rows {
		row := x.row(i)
		addRun(row[width:], row[:width])
		j.finishRow(t, t.from+i, x.m[i], row[2*width-1], row[width:2*width-1])
	}
}

// fwdRows is the rows of a tile, and the keys [k0, k1) that they are at.
type fwdRows struct {
	p                       *flashkit.Problem
	from, rows, width, keys int
	q, k, v                 []float32
	qStep, kStep, vStep     int
	sums                    []float32 // o and l of each row, of the run at hand, then of those before
	m                       []float32 // of each row
	w                       []float32 // scores, then weights, [rows, keys]
	k0, k1                  int
}

// blockFloats is how much of K, or of V, rows take turns with: half of a small first-level cache.
const blockFloats = 4096

// blockKeys is the keys of a block for rows of a width.
func blockKeys(width int) int { return max(4, blockFloats/max(1, width)&^3) }

func (x *fwdRows) row(i int) []float32 { return x.sums[i*2*x.width:][:2*x.width] }

// seen returns which of the keys row i sees, block keys from number c on. Keys are
// numbered from k0.
func (x *fwdRows) seen(i, c, block int) (lo, hi int) {
	lo, hi = x.p.Keys(x.from + i)
	lo = max(lo-x.k0, 0) + c
	return lo, min(hi-x.k0, x.k1-x.k0, lo+block)
}

// scores sets w to the dot products. Like weights and values, it reports whether the call goes on.
func (x *fwdRows) scores(j *job) bool {
	block := blockKeys(x.p.Dim)
	for c := 0; c < x.k1-x.k0; c += block {
		for i := range x.rows {
			if j.canceled() {
				return false
			}
			if lo, hi := x.seen(i, c, block); lo < hi {
				dots(x.w[i*x.keys:][lo:hi], x.q[i*x.qStep:][:x.p.Dim], x.k[lo*x.kStep:], x.kStep, everyKey[:hi-lo])
			}
		}
	}
	return true
}

// weights turns w into weights, and adds them to l.
func (x *fwdRows) weights(j *job) bool {
	for i := range x.rows {
		if j.canceled() {
			return false
		}
		if lo, hi := x.seen(i, 0, tileK); lo < hi {
			row := x.row(i)
			top, sum := j.accumulate(x.w[i*x.keys:][lo:hi], x.m[i], row)
			x.m[i] = top
			row[x.p.VDim] += sum
		}
	}
	return true
}

// values adds the weighted rows of V to o, to that of two rows at a time while they see the same.
func (x *fwdRows) values(j *job) bool {
	block := blockKeys(x.p.VDim)
	for c := 0; c < x.k1-x.k0; c += block {
		for i := 0; i < x.rows; i += 2 {
			if j.canceled() {
				return false
			}
			lo, hi := x.seen(i, c, block)
			if i+1 < x.rows {
				lo1, hi1 := x.seen(i+1, c, block)
				if n := (min(hi, hi1) - lo) &^ 3; lo == lo1 && n > 0 {
					w0, w1 := x.w[i*x.keys+lo:][:n], x.w[(i+1)*x.keys+lo:][:n]
					axpyTwo(x.row(i)[:x.p.VDim], x.row(i + 1)[:x.p.VDim], w0, w1, x.v[lo*x.vStep:], x.vStep)
					lo, lo1 = lo+n, lo+n
				}
				x.addValues(i+1, lo1, hi1)
			}
			x.addValues(i, lo, hi)
		}
	}
	return true
}

// addValues adds the weighted rows of V of the keys [lo, hi) to o of row i.
func (x *fwdRows) addValues(i, lo, hi int) {
	if lo < hi {
		axpy(x.row(i)[:x.p.VDim], x.w[i*x.keys+lo:], 1, hi-lo, x.v[lo*x.vStep:], x.vStep)
	}
}

// accumulate turns the scores s into weights relative to the running maximum m,
// raising m first and rescaling the sums so far where s tops it. It returns the
// new m and the sum of the weights. Scores are scaled in float64, as those of calls with
// features are: large ones lose nothing, and a sequence gives the bits of a dense call.
func (j *job) accumulate(s []float32, m float32, sums []float32) (top, sum float32) {
	top = m
	for _, x := range s {
		if x > top {
			top = x
		}
	}
	if top > m {
		scale(sums, exp(j.scaled(m)-j.scaled(top)))
	}
	shift := j.scaled(top)
	if math.IsInf(shift, -1) {
		shift = 0 // every score so far is -Inf or NaN: exp must give 0 or NaN, not exp(-Inf + Inf)
	}
	l := 0.0 // its error is that of O and LSE in every element
	for i, x := range s {
		d, w := j.scaled(x)-shift, float32(0)
		if d >= expLow && d < expHigh {
			w = expWithin(d)
		} else {
			w = exp(d)
		}
		s[i] = w
		l += float64(w)
	}
	return top, float32(l)
}

// scaled returns a dot product times the softmax scale, rounded by itself: fused with
// what follows it would be another number.
func (j *job) scaled(x float32) float64 { return float64(float64(x) * j.scale) }

// finishRow divides once and writes row i of the head of t.
func (j *job) finishRow(t queryTile, i int, m, l float32, o []float32) {
	lse := j.normalize(o, m, l)
	store(&j.args.O, j.args.O.Offset(t.b, t.h, i), o)
	j.storeLSE(t.b, t.h, i, lse)
}

// normalize divides o by l and returns the row's LSE.
func (j *job) normalize(o []float32, m, l float32) float32 {
	if l == 0 { // no key, or none with a score above -Inf
		clear(o)
		return float32(math.Inf(-1))
	}
	scale(o, 1/l)
	return float32(j.scaled(m) + math.Log(float64(l)))
}

// storeLSE writes the LSE of row i of head h, if it is wanted.
func (j *job) storeLSE(b, h, i int, lse float32) {
	if t := &j.args.LSE; !t.IsZero() {
		t.Float32s()[t.Offset(b, h, i)] = lse
	}
}
