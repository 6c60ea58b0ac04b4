//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// decodeSums is the state of the rows of a decode kernel: m, l and o of the current chunk. An item
// with all chunks of a head also has the sums of past chunks; otherwise each chunk's result is kept
// for the merge.
type decodeSums struct {
	itemOfKeys
	at   int       // the current chunk
	m, l []float32 // [rows]
	o    []float32 // [rows][oStep]
	allM []float32 // of past chunks
	all  []float32 // of past chunks; a column holds l, as in o at the end of a chunk
	by   []float32 // [lanes], factors
}

func sumFloats(rows, oStep int) int { return 3*rows + 2*rows*oStep + decodeWidest }

// setItem initializes x for an item's KV head number turn. It returns the number of heads that take
// turns.
func (x *decodeSums) setItem(j *job, ws *pool.Arena, item, turn int) (turns int) {
	turns = x.itemOfKeys.setItem(j, item, turn)
	x.l, x.by = ws.Take(x.rows), ws.Take(decodeWidest)
	if !x.isSplit() {
		x.m, x.o = ws.Take(x.rows), ws.Take(x.rows*x.oStep)
		x.allM, x.all = ws.Take(x.rows), ws.Take(x.rows*x.oStep)
	}
	x.at = x.from
	x.begin()
	return turns
}

func (x *decodeSums) begin() {
	if x.isSplit() {
		x.m, x.o = x.result(x.at)
	}
	clear(x.o)
	clear(x.l)
	for r := range x.m {
		x.m[r] = float32(math.Inf(-1))
	}
}

func (x *decodeSums) end(isa *laneRoutines, j *job) {
	for r, l := range x.l {
		x.o[r*x.oStep+x.lColumn] = l
	}
	switch {
	case x.isSplit():
	case x.at == x.from:
		x.m, x.allM, x.o, x.all = x.allM, x.m, x.all, x.o
	default:
		for r := range x.m {
			x.allM[r] = isa.addChunk(x.all[r*x.oStep:][:x.oStep], x.allM[r], x.o[r*x.oStep:][:x.oStep], x.m[r], j.unit, x.by)
		}
	}
}

func (x *decodeSums) reach(isa *laneRoutines, j *job, chunk int) {
	for x.at < chunk {
		x.end(isa, j)
		x.at++
		x.begin()
	}
}

// addChunk adds o, with l, of one chunk to the sums of past chunks, and returns the larger maximum.
// It overwrites o.
func (isa *laneRoutines) addChunk(all []float32, allM float32, o []float32, m float32, unit float64, by []float32) float32 {
	rows := len(o) / isa.lanes
	switch {
	case m == allM:
		isa.addSum(&all[0], &o[0], rows, &ones[0])
		return m
	case m > allM:
		setAll(by[:isa.lanes], scalar.Exp(unit*(float64(allM)-float64(m))))
		isa.addSum(&all[0], &o[0], rows, &by[0])
		return m
	}
	setAll(by[:isa.lanes], scalar.Exp(unit*(float64(m)-float64(allM))))
	isa.addSum(&o[0], &all[0], rows, &by[0])
	copy(all, o)
	return allM
}

func setAll(x []float32, to float32) {
	for i := range x {
		x[i] = to
	}
}

// endItem ends the last chunk, and writes O and LSE if the item has all chunks.
func (isa *decodeRoutines) endItem(j *job, x *decodeSums, buf []float32) {
	x.reach(isa.laneRoutines, j, x.to-1)
	x.end(isa.laneRoutines, j)
	if x.isSplit() {
		return
	}
	for r := range x.written {
		if r < x.rows {
			isa.endRow(j, &x.itemOfKeys, r, x.allM[r], x.all[r*x.oStep:][:x.oStep], buf)
		} else {
			x.clearRow(j, r)
		}
	}
}

// merge merges the chunks of rows and writes O and LSE.
func (isa *decodeRoutines) merge(j *job, ws *pool.Arena, item int) {
	var x itemOfKeys
	results, from, to := x.setRows(j, item)
	all, buf, by := ws.Take(x.oStep), ws.Take(x.oStep), ws.Take(decodeWidest)
	for row := from; row < to; row++ {
		r := row % x.written
		x.setHead(j, results, row/x.written)
		if r >= x.rows {
			x.clearRow(j, r)
			continue
		}
		m := float32(0)
		for c := range x.chunks {
			tops, o := x.result(c)
			if o = o[r*x.oStep:][:x.oStep]; c == 0 {
				m = tops[r]
				copy(all, o)
			} else {
				m = isa.addChunk(all, m, o, tops[r], j.unit, by)
			}
		}
		isa.endRow(j, &x, r, m, all, buf)
	}
}

func (x *itemOfKeys) clearRow(j *job, r int) {
	h, i := x.queryOf(x.g, r)
	clearRows(&j.args.O, x.QBatch, h, x.Q0+i, x.Q0+i+1)
	j.storeLSE(x.QBatch, h, x.Q0+i, float32(math.Inf(-1)))
}

// endRow divides row r of O by l, held in column lColumn, and writes O and LSE.
func (isa *decodeRoutines) endRow(j *job, x *itemOfKeys, r int, m float32, o, buf []float32) {
	p, l := &j.p, o[x.lColumn]
	if isa.split > 0 && isa.storage(j) == flashkit.BFloat16 {
		whole := x.lColumn
		if isa.halves {
			whole = p.VDim / isa.split * isa.split
		}
		unsplit(o[:whole], buf, isa.split)
	}
	o, buf = o[:p.VDim], buf[:p.VDim]
	if isa.halves {
		scalar.Scale(o, 1./weightUnit)
	}
	h, i := x.queryOf(x.g, r)
	i += x.Q0
	at, lse := j.args.O.Offset(x.QBatch, h, i), math.Inf(-1)
	switch {
	case p.Score.Sink || p.Carry:
		sink, before := j.otherLogits(x.QBatch, h, i)
		if !p.Score.Sink && l == 0 && !math.IsInf(before, -1) {
			return // O and LSE stay
		}
		if p.Carry {
			load(buf, &j.args.O, at)
		}
		lse = mergeOthers(o, j.unit*float64(m), float64(l), sink, before, j.keep(), buf)
	case l == 0: // no key, or none with a score above -Inf
		clear(o)
	default:
		scalar.Scale(o, float32(j.keep()/float64(l)))
		lse = j.unit*float64(m) + math.Log(float64(l))
	}
	isa.store(&j.args.O, at, o)
	j.storeLSE(x.QBatch, h, i, float32(lse))
}

// keep returns the dropout factor of the kept weights.
func (j *job) keep() float64 { return float64(philox.Keep(j.p.Score.Dropout)) }

// otherLogits returns the logits of a row's weights other than its keys': of the sink, and of the
// earlier keys.
func (j *job) otherLogits(b, h, i int) (sink, before float64) {
	return j.sinkOf(h), j.earlierLSE(b, h, i)
}

// mergeOthers merges o and l, relative to the logit m, with the sink and the earlier keys' O in past.
// It sets o to the quotient and returns LSE.
func mergeOthers(o []float32, m, l, sink, before, keep float64, past []float32) float64 {
	top := max(m, sink, before)
	if math.IsInf(top, -1) && l == 0 {
		clear(o)
		return top
	}
	w, earlier := weightOf(m, top), weightOf(before, top)
	sum := l*w + weightOf(sink, top) + earlier
	scalar.Scale(o, float32(keep*w/sum))
	if earlier > 0 {
		by := float32(earlier / sum)
		for i, x := range past {
			o[i] += by * x
		}
	}
	return top + math.Log(sum)
}

func weightOf(x, top float64) float64 {
	if d := x - top; d != 0 {
		return math.Exp(d)
	}
	return 1
}
