//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// decodeSums holds the sums of a KV head's rows: m, l and o of the current chunk. If the item has all
// chunks of the head, allM and all hold the sums over the earlier chunks. Otherwise each chunk's
// sums are kept in results, for the merge phase.
type decodeSums struct {
	itemOfKeys
	at   int       // the current chunk
	m, l []float32 // [rows]
	o    []float32 // [rows][oStep]
	allM []float32 // m over the earlier chunks
	all  []float32 // o over the earlier chunks, with l in lColumn; end also stores l in o
	by   []float32 // [lanes], scratch for factors
}

func sumFloats(rows, oStep int) int { return 3*rows + 2*rows*oStep + decodeWidest }

// setItem initializes x for one KV head of an item. turn is the index of this head among the item's
// heads. setItem returns the number of the item's heads.
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

// addChunk adds o to all. o holds a row's sums over one chunk, and all holds the row's sums over
// the earlier chunks. Both slices include l. o is relative to the row maximum m, and all is
// relative to allM. addChunk returns the larger maximum and makes all relative to it. It may
// overwrite o. by is scratch for factors.
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

// endItem ends the item's last chunk. If the item has all chunks of the head, endItem writes O and
// LSE. buf is scratch for one row.
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

// merge merges the chunks of an item's rows and writes O and LSE.
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
	j.clearStats(x.QBatch, h, x.Q0+i)
}

// endRow writes row r of O and its LSE. o holds the sums of the row relative to m, with l in column
// x.lColumn. buf is scratch for one row.
func (isa *decodeRoutines) endRow(j *job, x *itemOfKeys, r int, m float32, o, buf []float32) {
	p, l := &j.p, o[x.lColumn]
	isa.joinRows(j, o, x.oStep, x.lColumn)
	unit := isa.unit()
	h, i := x.queryOf(x.g, r)
	i += x.Q0
	j.storeRowMax(x.QBatch, h, i, j.unit*float64(m), l)
	at, lse := j.args.O.Offset(x.QBatch, h, i), math.Inf(-1)
	switch {
	case p.Score.Sink || p.Carry:
		o, buf = o[:p.VDim], buf[:p.VDim]
		if isa.halves {
			scalar.Scale(o, float32(unit))
		}
		sink, before := j.otherLogits(x.QBatch, h, i)
		if !p.Score.Sink && l == 0 && !math.IsInf(before, -1) {
			return // O and LSE keep the result of the earlier keys
		}
		if p.Carry {
			load(buf, &j.args.O, at)
		}
		lse = mergeOthers(o, j.unit*float64(m), float64(l), sink, before, j.keep(), buf)
	case l == 0: // no key, or none with a score above -Inf
		clear(o)
	default:
		by := &buf[x.lColumn]
		*by = float32(j.keep() / float64(l) * unit)
		isa.scaleRows(&o[0], 0, pad(p.VDim), 1, by)
		if !j.args.LSE.IsZero() {
			lse = j.unit*float64(m) + math.Log(float64(l))
		}
	}
	isa.store(&j.args.O, at, o[:p.VDim])
	j.storeLSE(x.QBatch, h, i, float32(lse))
}

// joinRows restores the order of elements in rows of O, which are step elements apart. Column l follows
// the elements.
func (isa *decodeRoutines) joinRows(j *job, o []float32, step, lColumn int) {
	if isa.split == 0 || isa.storage(j) != flashkit.BFloat16 {
		return
	}
	if isa.halves {
		lColumn = j.p.VDim / isa.split * isa.split
	}
	for at := 0; at < len(o) && lColumn > 0; at += step {
		isa.joinRow(&o[at], lColumn)
	}
}

// unit returns the reciprocal of the unit of the sums in O.
func (isa *decodeRoutines) unit() float64 {
	if isa.halves {
		return 1. / weightUnit
	}
	return 1
}

// keep returns the dropout factor of the kept weights.
func (j *job) keep() float64 {
	if j.p.Score.Dropout == 0 {
		return 1
	}
	return float64(philox.Keep(j.p.Score.Dropout))
}

// otherLogits returns the logit of a row's sink and the LSE of its earlier keys. sink is -Inf if
// the call has no sink. before is -Inf if there are no earlier keys.
func (j *job) otherLogits(b, h, i int) (sink, before float64) {
	return j.sinkOf(h), j.earlierLSE(b, h, i)
}

// mergeOthers merges a row's sums o and l with the sink and the earlier keys. o and l are relative to
// the logit m, and sink is the logit of the sink. past is O over the earlier keys, and before is their
// LSE. keep is the dropout factor. mergeOthers sets o to the row of O, and returns its LSE.
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
