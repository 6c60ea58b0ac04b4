package simd

import (
	"math"
	"slices"

	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
)

// fwd_generic computes, for each query row i,
//
//	m, l, o = -Inf, 0, 0, or their values after the earlier keys and the sink
//	for each tile of keys that row i sees:
//		s = scale * K·q, changed by the score features
//		if max(s) > m: a = exp(m-max(s)); o, l, m = a*o, a*l, max(s)
//		w = exp(s - m)
//		l += sum(w); o += w·V over the weights that dropout keeps; both in runs of portableRun keys
//	O[i] = o / l; LSE[i] = m + ln(l)
//
// (Milakov and Gimelshein 2018, algorithm 3; Dao et al. 2022, algorithm 1.) An item is one tile of
// query rows of one head. Each row processes only the keys that it sees, so NaN in a masked key
// cannot reach the result. Two neighboring rows that see the same keys share the loads of V.
func fwdGenericTile(j *job, ws *pool.Arena, item int) {
	var x fwdRows
	x.findRows(&j.plan, item)
	x.begin(j, ws)
	first, last := x.keysSeen()
	for k0 := first; k0 < last; k0 += tileK {
		k1 := min(k0+tileK, last)
		x.kv.load(j, &x.Seq, x.b, x.g, k0, k1-k0)
		if (k0-first)%portableRun == 0 {
			x.endRun()
		}
		for i := 0; i < x.rows; i += 2 {
			if j.Canceled() {
				return
			}
			first := x.weigh(i, k0, k1)
			if j.Canceled() {
				return
			}
			x.addValues(i, first, x.weigh(i+1, k0, k1))
		}
	}
	x.endRun()
	if j.p.KeyMass {
		x.weighKeys(j, ws, first, last)
	}
	for i := range x.rows {
		j.storeRowMax(x.QBatch, x.h, x.Q0+x.from+i, x.top[i], 0)
		if o, l := x.total(i); !j.p.Carry || j.p.Score.Sink || x.seesKeys[i] || l == 0 { // else O and LSE stay: with Carry, they hold the result of the earlier keys
			j.endRow(&x.seqTile, x.from+i, x.m[i], l, o)
		}
	}
	j.clearRows(&x.seqTile)
}

type fwdRows struct {
	seqTile
	rows, dim, vdim int
	q               []float32
	qStep           int
	sums            []float32 // for each row, o and l of the current run, then o and l of the finished runs
	m               [tileQ]float64
	seesKeys        [tileQ]bool    // the row has seen a key
	top             [tileQ]float64 // with RowMax, the largest score of the row's keys
	kv              kvTile
	s               scorer

	// Scratch for two neighboring rows.
	seen [2][tileK]int
	w    []float32 // [2][keys]
}

// weighKeys adds the weights of the tile's rows to the sums of keys [first, last).
func (x *fwdRows) weighKeys(j *job, ws *pool.Arena, first, last int) {
	grid, sums := massGrid(x.N), doubles(ws.Take(2*tileK + 2))[:tileK]
	for k0 := first; k0 < last; k0 += tileK {
		k1 := min(k0+tileK, last)
		x.kv.load(j, &x.Seq, x.b, x.g, k0, k1-k0)
		clear(sums)
		for i := range x.rows {
			_, l := x.total(i)
			if j.Canceled() || l == 0 {
				continue
			}
			lo, hi := x.Keys(x.from + i)
			x.s.setRow(x.from + i)
			keys := x.s.seen(&x.seen[0], k0, max(lo, k0), min(hi, k1))
			w := x.w[:len(keys)]
			scalar.Dots(w, x.q[i*x.qStep:][:x.dim], x.kv.k, x.kv.kStep, keys)
			for c, s := range x.s.scores(w, k0, keys) {
				if y := math.Exp(s-x.m[i]) / float64(l); !math.IsInf(s, -1) {
					sums[keys[c]] += (y + grid) - grid
				}
			}
		}
		j.addMass(x.b, x.h, k0, sums[:k1-k0])
	}
}

type rowWeights struct {
	keys []int
	w    []float32
}

func (x *fwdRows) begin(j *job, ws *pool.Arena) {
	p, t := &j.p, &x.seqTile
	x.rows, x.dim, x.vdim = t.to-t.from, p.Dim, p.VDim
	x.q, x.qStep = view(&j.args.Q, t.QBatch, t.h, t.Q0+t.from, x.rows, ws.Take(x.rows*p.Dim))
	x.sums = ws.Take(x.rows * 2 * (p.VDim + 1))
	for i := range x.rows {
		x.m[i], x.top[i] = j.beginRow(t, t.from+i, x.row(i)), math.Inf(-1)
	}
	x.kv, x.w = newKVTile(j, ws), ws.Take(2*j.portable.keys)
	x.s.begin(j)
	x.s.setHead(&t.Seq, t.b, t.h)
}

func (x *fwdRows) row(i int) []float32 { return x.sums[i*2*(x.vdim+1):][:2*(x.vdim+1)] }

func (x *fwdRows) o(i int) []float32 { return x.row(i)[:x.vdim] }

func (x *fwdRows) total(i int) (o []float32, l float32) {
	past := x.row(i)[x.vdim+1:]
	return past[:x.vdim], past[x.vdim]
}

func (x *fwdRows) endRun() {
	for i := range x.rows {
		row := x.row(i)
		addRun(row[x.vdim+1:], row[:x.vdim+1])
	}
}

// weigh returns the weights of row i of the tile for the keys of [k0, k1) that the row sees. It
// adds the weights to l. i may be x.rows: then weigh returns no weights. There are two result
// buffers: the result for an even i is valid until the next call with an even i.
func (x *fwdRows) weigh(i, k0, k1 int) rowWeights {
	if i == x.rows {
		return rowWeights{}
	}
	lo, hi := x.Keys(x.from + i)
	x.s.setRow(x.from + i)
	keys := x.s.seen(&x.seen[i%2], k0, max(lo, k0), min(hi, k1))
	if len(keys) == 0 {
		return rowWeights{}
	}
	x.seesKeys[i] = true
	w := x.w[i%2*len(x.w)/2:][:len(keys)]
	scalar.Dots(w, x.q[i*x.qStep:][:x.dim], x.kv.k, x.kv.kStep, keys)
	row, sum, s := x.row(i), float32(0), x.s.scores(w, k0, keys)
	if x.s.rowMax {
		x.top[i] = max(x.top[i], slices.Max(s))
	}
	x.m[i], sum = accumulate(w, s, x.m[i], row)
	row[x.vdim] += sum
	if x.s.score.Dropout != 0 {
		for c, z := range x.s.dropout(k0, keys) {
			w[c] *= z
		}
	}
	return rowWeights{keys, w}
}

// addValues adds weighted rows of V to o of rows i and i+1. first holds the keys and weights of row
// i, and second holds the keys and weights of row i+1. If both rows see the same keys, except for
// keys at the end, addValues loads V once for both rows.
func (x *fwdRows) addValues(i int, first, second rowWeights) {
	n := min(len(first.keys), len(second.keys)) &^ 3
	if n > 0 && slices.Equal(first.keys[:n], second.keys[:n]) {
		scalar.AddRowsToTwo(x.o(i), x.o(i+1), first.w[:n], second.w, x.kv.v, x.kv.vStep, first.keys)
	} else {
		n = 0
	}
	for r, of := range [2]rowWeights{first, second} {
		if n < len(of.keys) {
			scalar.AddRows(x.o(i+r), of.w[n:], x.kv.v, x.kv.vStep, of.keys[n:])
		}
	}
}

func (t *seqTile) keysSeen() (first, last int) {
	if t.from == t.to {
		return 0, 0
	}
	first, _ = t.Keys(t.from)
	_, last = t.Keys(t.to - 1)
	return first, last
}

// beginRow initializes the sums o and l of row i from the sink and from O and LSE of the earlier
// keys. It returns the maximum of the sink and that LSE, or -Inf.
func (j *job) beginRow(t *seqTile, i int, sums []float32) (m float64) {
	clear(sums)
	past, m := sums[len(sums)/2:], math.Inf(-1)
	o, l := past[:len(past)-1], &past[len(past)-1]
	if lse := j.earlierLSE(t.QBatch, t.h, t.Q0+i); !math.IsInf(lse, -1) {
		m, *l = lse, 1
		load(o, &j.args.O, j.args.O.Offset(t.QBatch, t.h, t.Q0+i))
	}
	if j.p.Score.Sink {
		sink := j.sinkOf(t.h)
		if top := max(m, sink); !math.IsInf(top, -1) {
			scalar.Scale(past, scalar.Exp(m-top))
			*l += scalar.Exp(sink - top)
			m = top
		}
	}
	return m
}

// accumulate sets w to exp(s - m), where m is the running maximum. If a score exceeds m, accumulate
// first raises m and rescales sums. It returns the new m and the sum of w. It sums in float64,
// because the error of the sum enters every element of O and LSE.
func accumulate(w []float32, s []float64, m float64, sums []float32) (top float64, sum float32) {
	top = m
	for _, x := range s {
		if x > top {
			top = x
		}
	}
	if top > m {
		scalar.Scale(sums, scalar.Exp(m-top))
	}
	shift := top
	if math.IsInf(top, -1) {
		shift = 0 // all scores so far are -Inf or NaN: exp must return 0 or NaN, not exp(-Inf + Inf)
	}
	w = w[:len(s)]
	l := 0.0
	for c, x := range s {
		d := x - shift
		if d >= scalar.ExpLow && d < scalar.ExpHigh {
			w[c] = scalar.ExpWithin(d)
		} else {
			w[c] = scalar.Exp(d)
		}
		l += float64(w[c])
	}
	return top, float32(l)
}

// endRow divides o by l, and writes row i of O and its LSE.
func (j *job) endRow(t *seqTile, i int, m float64, l float32, o []float32) {
	f, lse := j.args, math.Inf(-1)
	if l == 0 { // the row sees no key, or all its scores are -Inf
		clear(o)
	} else {
		scalar.Scale(o, 1/l)
		lse = m + math.Log(float64(l))
	}
	store(&f.O, f.O.Offset(t.QBatch, t.h, t.Q0+i), o)
	j.storeLSE(t.QBatch, t.h, t.Q0+i, float32(lse))
}

// planPortable plans the tiles of query rows. If the call has no arguments, planPortable assumes
// that each sequence has QLen query rows and KVLen keys.
func (pl *plan) planPortable() {
	x := &pl.portable
	for b := range pl.sequences() {
		s := pl.call.Seq(b)
		x.n, x.m = max(x.n, s.N), max(x.m, s.M)
	}
	x.rows, x.keys = min(tileQ, x.n), min(tileK, x.m)
	pl.rows, x.queryItems = tileQ, pl.p.Heads*pl.rowTiles(tileQ)
}

func planFwdGeneric(pl *plan) {
	pl.planPortable()
	x := &pl.portable
	rows, keys, dim, vdim := float64(x.rows), float64(x.keys), float64(pl.p.Dim), float64(pl.p.VDim)
	floats := rows*(dim+2*(vdim+1)) + keys*(dim+vdim+2)
	if pl.p.KeyMass {
		floats += 2*tileK + 2
	}
	pl.work[0] = pool.Phase{Items: x.queryItems, Floats: count(floats)}
	pl.shared = pl.massFloats()
}

var fwdGenericPace = pace{start: 430, flop: .134, pair: 19.6, element: 1.2, widen: .35}

// fwdGenericTimes predicts the time from the number of pairs of a query row and a key inside the
// band. It assumes that a tile of query rows loads and widens its keys once.
func fwdGenericTimes(pl *plan) [3]timedPhase {
	t, c, items := &fwdGenericPace, pl.call, pl.work[0].Items
	pairs, dims := pairsSeen(c), float64(c.Dim+c.VDim)
	pair := 2*dims*t.flop + t.pair + pairTime(c)
	rows, _ := rowsAndKeys(c)
	read := pairs / float64(max(1, pl.portable.rows)) * dims
	sum := float64(items)*t.start + pairs*pair + rows*dims*t.element + converted(&c.Problem, read)*t.widen +
		halfTimes(c.DType, rows*dims) + halfTimes(c.KVType(), read)
	return [3]timedPhase{{items, sum, pl.longestPairs(tileQ, false) * pair}}
}
