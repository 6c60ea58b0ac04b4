//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// The arithmetic of a head of few keys takes less time than the Go code around it. So if all keys of
// a head are in one block, an item has several heads. It loads Q of all heads, computes all scores,
// all weights, and then all values. The bits equal, head by head, the bits of items of one head.

// shortRows is the most query rows of all heads of an item, unless one head has more. Their scores
// and sums fit L1.
const shortRows = 32

// planShort plans the call and reports true if the heads are short.
func (pl *plan) planShort() bool {
	const fewest = 2 // least items per worker, if items have several heads
	c, d := pl.call, &pl.decode
	if pl.ragged || c.Batch == 0 || c.Page != 0 || c.Score != (flashkit.Score{}) || c.Carry {
		return false
	}
	d.decodeShape = newDecodeShape(c)
	pl.splitSequence(&d.one, 0)
	if one := &d.one; one.first == one.last {
		return false
	} else if all := one.cut(one.first, one.last); all.n < one.last-one.first || all.rows < one.rows {
		return false
	}
	pl.apart = true
	d.short, d.turns = true, max(1, min(shortRows/d.one.rows, d.one.heads/(fewest*pl.workers)))
	pl.splitSequence(&d.one, 0)
	rows := d.turns * d.one.rows
	floats := (rows+decodePad)*(decodeStep+d.qStep+d.oStep) + 2*rows + keyFloats(c, c.Dim) + keyFloats(c, c.VDim) + decodeWidest
	pl.work[0] = pool.Phase{Items: d.one.span().Items, Floats: floats}
	return true
}

// shortItem is an item: several short KV heads.
type shortItem struct {
	decodeItem
	head, heads int       // the first head, numbered over all sequences, and number of heads
	rows, n     int       // query rows of all heads, and keys of a head
	edge        bool      // the band hides some of the keys from some of the rows
	q, o        []float32 // [rows][qStep], [rows][oStep]
	m, l        []float32 // [rows]
}

func (isa *decodeRoutines) shortHeads(j *job, ws *pool.Arena, item int) {
	var x shortItem
	isa.setShort(&x, j, ws, item)
	h, s := &x.one, x.s[0]
	attend, ahead := isa.attend[x.as], min(x.k.tiles, x.v.tiles)
	for i := range x.heads {
		k, q := x.block(isa.laneRoutines, &x.k, i), &x.q[i*h.rows*h.qStep]
		attend(&s[i*h.rows*decodeStep], k, &x.k.table[0], x.k.ahead, q, h.qStep, j.p.Dim, h.rows, x.n,
			&x.o[0], h.oStep, &x.scratch[0], nil, nil, nil, x.v.ahead, j.p.VDim, 0, 0, ahead)
	}
	x.hide()
	isa.weights(&s[0], x.rows, x.n, &x.m[0], &x.l[0], j.base2, &x.o[0], h.oStep)
	for i := range x.heads {
		v, o := x.block(isa.laneRoutines, &x.v, i), &x.o[i*h.rows*h.oStep]
		attend(nil, nil, nil, x.k.ahead, &x.q[0], h.qStep, j.p.Dim, 0, 0,
			o, h.oStep, &x.scratch[0], &s[i*h.rows*decodeStep], v, &x.v.table[0], x.v.ahead, j.p.VDim, h.rows, x.n, ahead)
		if x.edge {
			isa.repairShort(j, &x, i, v)
		}
	}
	isa.storeShort(j, &x)
}

func (isa *decodeRoutines) setShort(x *shortItem, j *job, ws *pool.Arena, item int) {
	h := &x.one
	x.heads = h.itemOfKeys.setItem(j, item, 0)
	x.head, x.as = h.b*j.p.KVHeads+h.g, isa.storage(j)
	x.rows, x.n, x.edge = x.heads*h.rows, h.last-h.first, h.cut(h.first, h.last).edge
	x.scratch = ws.Take(decodePad * h.oStep)
	x.k.set(j, ws, &x.decodeItem, &j.args.K)
	x.v.set(j, ws, &x.decodeItem, &j.args.V)
	x.s[0] = ws.Take((x.rows + decodePad) * decodeStep)
	x.q, x.o = ws.Take((x.rows+decodePad)*h.qStep), ws.Take(x.rows*h.oStep)
	x.m, x.l, h.top = ws.Take(x.rows), ws.Take(x.rows), ws.Take(decodeWidest)
	setAll(x.m, float32(math.Inf(-1)))
	clear(x.l)
	clear(x.o)
	q, t := x.q, &j.args.Q
	for i := range x.heads {
		b, g := x.headOf(i)
		isa.loadQueries(q, t, b, g, &h.itemOfKeys)
		q = q[h.rows*h.qStep:]
	}
	clear(q)
	if isa.splits(x.as) && !isa.halves {
		isa.splitRow(&x.q[0], x.rows*h.qStep)
	}
}

// headOf returns the sequence and the KV head of the item's head i.
func (x *shortItem) headOf(i int) (b, g int) {
	return (x.head + i) / x.one.kvHeads, (x.head + i) % x.one.kvHeads
}

// block returns the address of the block's rows of K or V in the item's head i. It widens the rows if
// they are not read in place.
func (x *shortItem) block(isa *laneRoutines, k *keyRows, i int) *byte {
	h := &x.one
	b, g := x.headOf(i)
	if k.first == nil {
		k.load(isa, k.buf, b, g, h.K0+h.first, x.n)
		return (*byte)(unsafe.Pointer(&k.buf[0]))
	}
	return (*byte)(unsafe.Add(k.first, (b-h.b)*k.t.Strides()[0]*x.as.Size()+g*k.headStep+h.first*k.step))
}

// hide sets the scores of hidden keys, and of the elements after the last key, to -Inf.
func (x *shortItem) hide() {
	h, low, n := &x.one, float32(math.Inf(-1)), pad(x.n)
	if !x.edge { // all rows see all keys
		for r := range x.rows {
			setAll(x.s[0][r*decodeStep:][x.n:n], low)
		}
		return
	}
	for r := range h.rows {
		from, to := h.Keys(r / h.group)
		from, to = from-h.first, to-h.first
		for at := r; at < x.rows; at += h.rows {
			s := x.s[0][at*decodeStep:][:n]
			for i := range from {
				s[i] = low
			}
			for i := to; i < len(s); i++ {
				s[i] = low
			}
		}
	}
}

// repairShort does the work of repair for the item's head i. v is the address of its block of V.
func (isa *decodeRoutines) repairShort(j *job, x *shortItem, i int, v *byte) {
	h := &x.one
	o := x.o[i*h.rows*h.oStep:][:h.rows*h.oStep]
	isa.repairRows(o, h.oStep, h.top, func(r int, row []float32) {
		clear(row)
		from, to := h.Keys(r / h.group)
		for key := from - h.first; key < to-h.first; key++ {
			isa.addKey(x.as, row, x.scratch, &x.s[0][(i*h.rows+r)*decodeStep+key], unsafe.Add(unsafe.Pointer(v), x.v.table[key]), j.p.VDim)
		}
	})
}

// storeShort divides the rows of O by l, and writes O and LSE.
func (isa *decodeRoutines) storeShort(j *job, x *shortItem) {
	h, vdim := &x.one, j.p.VDim
	isa.joinRows(j, x.o, h.oStep, h.lColumn)
	by := x.s[0][:x.rows]
	for r, l := range x.l {
		if by[r] = float32(1 / float64(l) * isa.unit()); l == 0 {
			clear(x.o[r*h.oStep:][:h.oStep])
			by[r] = 0
		}
	}
	isa.scaleRows(&x.o[0], h.oStep, pad(vdim), x.rows, &by[0])
	for i := range x.heads {
		b, g := x.headOf(i)
		isa.storeGroup(&j.args.O, b, g*h.group, h.group, h.Q0, h.N, x.o[i*h.rows*h.oStep:], h.oStep)
		if j.args.LSE.IsZero() && !j.p.RowMax {
			continue
		}
		for r := range h.rows {
			head, row := h.queryOf(g, r)
			at := i*h.rows + r
			j.storeRowMax(b, head, h.Q0+row, j.unit*float64(x.m[at]), x.l[at])
			j.storeLSE(b, head, h.Q0+row, lseOf(j.unit, x.m[at], x.l[at]))
		}
	}
}

func lseOf(unit float64, m, l float32) float32 {
	if l == 0 {
		return float32(math.Inf(-1))
	}
	return float32(unit*float64(m) + math.Log(float64(l)))
}
