package wasm

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// The decode kernel is for few query rows and many keys. An item is one KV head of a sequence with
// its query heads. The query rows of an item are divided into parts of up to fewRows rows of one
// query head. The host stages a tile of keys once, then calls the module for each part. Each part
// has its own parameter block and scratch.

const (
	fewRows  = 8  // maximum rows of a query head per module call
	headRows = 64 // maximum rows of a KV head
)

func (v *variant) isDecode() bool { return v.keys == decodeKeys }

const decodeKeys = "decode_simd128_keys"

// refusesDecode returns the reason if the call has more query rows per KV head than the decode
// kernel supports, else "".
func refusesDecode(c *flashkit.Call) string {
	if n := c.Heads / max(1, c.KVHeads); c.QLen > 0 && n > headRows/c.QLen {
		return fmt.Sprintf("supports up to %d query rows of a KV head, not %d x %d", headRows, n, c.QLen)
	}
	return ""
}

// placeDecode lays out the memory of the decode kernel. take reserves memory for the given number
// of floats and returns its offset.
func (x *plan) placeDecode(take func(floats uint64) uint64) (w places) {
	d, dv, heads := uint64(x.c.Dim), uint64(x.c.VDim), uint64(x.parts(x.c.QLen))
	w.block = take(blockWords * heads)
	w.k, w.v = take(tile*d), take(tile*dv)
	if x.c.KVType() != flashkit.Float32 {
		w.rawK, w.rawV = take(tile*d/2), take(tile*dv/2)
	}
	if x.c.Score.Bias {
		w.bias = take(tile * tile)
	}
	if hidesPairs(x.c) {
		w.mask = take(tile * tile / 4)
	}
	w.scratchBytes = x.scratchDecode()
	w.scratch = take(w.scratchBytes / 4 * heads)
	w.q, w.o, w.lse = take(fewRows*d*heads), take(fewRows*dv*heads), take(fewRows*heads)
	take(tile * (max(d, dv) + 1)) // the module checks that memory for a whole tile follows each offset
	return w
}

// scratchDecode returns the size in bytes of the scratch areas in DECODE of decode.h.
func (x *plan) scratchDecode() uint64 {
	return 4 * (3*fewRows + fewRows*2*uint64(roundUp(x.c.VDim, 8)) + 2*tile)
}

// parts returns the number of parts of a KV head if each of its query heads has the given number of
// rows.
func (x *plan) parts(rows int) int {
	if rows == 0 {
		return 0
	}
	return x.group() * ceil(rows, fewRows)
}

// A part is rows [i0, i1) of query head h. places holds the memory offsets of the part's data.
type part struct {
	places
	h, i0, i1 int
}

// partOf returns part n of KV head g, whose query heads have the given number of rows. all holds
// the places of part 0.
func (x *plan) partOf(all places, g, n, rows int) part {
	each := ceil(rows, fewRows)
	i0 := n % each * fewRows
	return part{x.partPlaces(all, n), g*x.group() + n/each, i0, min(i0+fewRows, rows)}
}

// partPlaces returns the places of the part with the given number. w holds the places of part 0.
func (x *plan) partPlaces(w places, part int) places {
	n := uint64(part)
	w.block += 4 * blockWords * n
	w.scratch += w.scratchBytes * n
	w.q += 4 * fewRows * uint64(x.c.Dim) * n
	w.o += 4 * fewRows * uint64(x.c.VDim) * n
	w.lse += 4 * fewRows * n
	return w
}

// decode claims and runs items until none is left.
func (j *job) decode(x *instance) error {
	for !j.stopped() {
		head := int(j.next.Add(1) - 1)
		if head >= j.heads() {
			break
		}
		s := j.c.Seq(head / j.c.KVHeads)
		if s.N == 0 {
			continue
		}
		if err := j.decodeHead(x, &s, head/j.c.KVHeads, head%j.c.KVHeads); err != nil {
			return err
		}
	}
	return nil
}

// decodeHead runs one item: KV head g of sequence b with its query heads.
func (j *job) decodeHead(x *instance, s *flashkit.Seq, b, g int) error {
	f := j.args
	j.poison(x)
	for n := range j.parts(s.N) {
		w := j.partOf(j.places, g, n, s.N)
		x.writeBlock(&j.plan, &w.places, s, 0, s.M)
		if j.features != 0 {
			x.writeScore(&j.plan, &w.places, b, w.h, s.Diagonal)
		}
		x.writeRaw(&w.places, j.c.KVType())
		x.load(w.q, &f.Q, f.Q.Offset(s.QBatch, w.h, s.Q0+w.i0), w.i1-w.i0)
		if j.c.Carry {
			x.load(w.o, &f.O, f.O.Offset(s.QBatch, w.h, s.Q0+w.i0), w.i1-w.i0)
			x.load(w.lse, &f.LSE, f.LSE.Offset(s.QBatch, w.h, s.Q0+w.i0), w.i1-w.i0)
		}
	}
	lo, _ := s.Keys(0)
	_, hi := s.Keys(s.N - 1)
	hi = max(lo, hi)
	flags := flagFirst
	for j0 := lo / tile * tile; flags&flagLast == 0; j0 += tile {
		j1 := max(j0, min(j0+tile, hi))
		if j0+tile >= hi {
			flags |= flagLast
		}
		if !j.headSees(b, g, s.N, j0, j1) {
			if j1 = j0; flags == 0 {
				continue
			}
		}
		if err := j.decodeBlock(x, s, b, g, j0, j1, flags); err != nil {
			return err
		}
		flags &^= flagFirst
	}
	for n := range j.parts(s.N) {
		w := j.partOf(j.places, g, n, s.N)
		x.store(w.o, &f.O, f.O.Offset(s.QBatch, w.h, s.Q0+w.i0), w.i1-w.i0)
		if !f.LSE.IsZero() {
			x.store(w.lse, &f.LSE, f.LSE.Offset(s.QBatch, w.h, s.Q0+w.i0), w.i1-w.i0)
		}
	}
	return nil
}

// headSees is like sees, for n rows of all query heads of KV head g.
func (j *job) headSees(b, g, n, j0, j1 int) bool {
	for h := g * j.group(); h < (g+1)*j.group(); h++ {
		if j.sees(b, h, 0, n, j0, j1) {
			return true
		}
	}
	return false
}

// decodeBlock stages the keys [j0, j1) of KV head g of sequence b and runs all parts of the item
// with these keys.
func (j *job) decodeBlock(x *instance, s *flashkit.Seq, b, g, j0, j1, flags int) error {
	if j.stopped() {
		return errStopped
	}
	j.poisonKeys(x)
	if w := &j.places; w.rawK == 0 {
		j.loadKeys(x, w.k, &j.args.K, b, g, j0, j1)
		j.loadKeys(x, w.v, &j.args.V, b, g, j0, j1)
	} else {
		j.loadRawKeys(x, w.rawK, &j.args.K, b, g, j0, j1)
		j.loadRawKeys(x, w.rawV, &j.args.V, b, g, j0, j1)
		if err := x.call(j.ctx, j.v.keys, int(w.block), j0, j1); err != nil {
			return err
		}
	}
	for n := range j.parts(s.N) {
		w := j.partOf(j.places, g, n, s.N)
		if n > 0 && j.stopped() {
			return errStopped
		}
		if j.pairs {
			j.loadPairs(x, &w.places, b, w.h, w.i0, w.i1, j0, j1)
		}
		if err := x.call(j.ctx, j.function, int(w.block), w.i0, w.i1, j0, j1, flags); err != nil {
			return err
		}
	}
	return nil
}

// loadRawKeys is like loadKeys, but copies rows of 16-bit numbers without conversion.
func (j *job) loadRawKeys(x *instance, offset uint64, t *flashkit.Tensor, b, g, j0, j1 int) {
	dim, stride := t.Shape()[3], t.Strides()[2]
	for j0 < j1 {
		from, n := j.c.KeyRun(t, b, g, j0)
		n = min(n, j1-j0)
		j0 += n
		if stride == dim {
			x.loadRaw(offset, t.Uint16s()[from:][:n*dim])
			offset += uint64(2 * n * dim)
			continue
		}
		for ; n > 0; n-- {
			x.loadRaw(offset, t.Uint16s()[from:][:dim])
			offset += uint64(2 * dim)
			from += stride
		}
	}
}
