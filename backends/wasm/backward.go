package wasm

import (
	"encoding/binary"
	"math"

	"github.com/flashkit-go/flashkit"
)

// backward takes items: a chunk of the keys of one head, which owns its dK and
// dV and walks the query rows that see it. dQ of a tile of rows is the sum over
// chunks, in their order, whoever computes them: a chunk takes up a tile where
// the chunk before has left it, and waits for that. Items are taken in order,
// hence the lowest one never waits.
func (j *job) backward(x *instance) error {
	n := j.heads() * j.chunks()
	for !j.stopped() {
		item := int(j.next.Add(1) - 1)
		if item >= n {
			break
		}
		if err := j.backwardChunk(x, item); err != nil {
			return err
		}
		j.passed[item].Store(passedAll)
	}
	return nil
}

func (j *job) backwardChunk(x *instance, item int) error {
	p, f, w := &j.p, j.args, &j.places
	c, head := item/j.heads(), item%j.heads()
	b, g := head/p.KVHeads, head%p.KVHeads
	k0 := c * j.chunk
	k1 := min(k0+j.chunk, p.KVLen)
	x.writeBlock(&j.plan, w, k0, k1-k0)
	for k := k0; k < k1; k += tile {
		if err := j.stageKeys(x, &f.K, &f.V, b, g, k, min(k+tile, k1)); err != nil {
			return err
		}
	}
	done := int64(0)
	for h := g * j.group(); h < (g+1)*j.group(); h++ {
		for t := range j.tiles() {
			if j.stopped() {
				return nil
			}
			if err := j.backwardTile(x, item, done, b, h, t, k0, k1); err != nil {
				return err
			}
			done++
			j.passed[item].Store(done)
		}
	}
	for k := k0; k < k1; k += tile {
		n := min(tile, k1-k)
		if err := x.call(j.ctx, j.v.grads, int(w.block), k, k+n); err != nil {
			return err
		}
		x.store(w.k, &f.DK, b, g, k, n)
		x.store(w.v, &f.DV, b, g, k, n)
	}
	return nil
}

// backwardTile adds what tile t of query head h and the keys [k0, k1) give each
// other.
func (j *job) backwardTile(x *instance, item int, done int64, b, h, t, k0, k1 int) error {
	w := &j.places
	i0, i1, lo, hi := j.tileRows(t)
	if lo == hi && k0 == 0 {
		x.zero(w.dq, (i1-i0)*j.p.Dim)
		x.store(w.dq, &j.args.DQ, b, h, i0, i1-i0)
	}
	first, last := k0 <= lo, hi <= k1
	lo, hi = max(lo, k0), min(hi, k1)
	if lo >= hi {
		return nil
	}
	if !first && !j.waitFor(item-j.heads(), done+1) {
		return nil
	}
	j.loadTile(x, b, h, i0, i1-i0, first)
	flags := flagFirst
	for j0 := k0 + (lo-k0)/tile*tile; flags&flagLast == 0; j0 += j.step {
		j1 := min(j0+j.step, hi)
		if j1 == hi {
			flags |= flagLast
			if last {
				flags |= flagScaled
			}
		}
		if j.stopped() {
			return nil
		}
		if err := x.call(j.ctx, j.v.rows, int(w.block), i0, i1, j0, j1, flags); err != nil {
			return err
		}
		flags &^= flagFirst
	}
	if last || !j.gathers() {
		x.store(w.dq, &j.args.DQ, b, h, i0, i1-i0)
		return nil
	}
	for i := range j.gathered(b, h, i0, i1-i0) {
		j.gathered(b, h, i0, i1-i0)[i] = get(x.at(w.dq, i+1), i)
	}
	return nil
}

// gathers reports whether dQ needs memory of its own between chunks.
func (x *plan) gathers() bool { return x.p.DType != flashkit.Float32 && x.chunks() > 1 }

// gathered returns n rows of the sums of dQ.
func (j *job) gathered(b, h, r, n int) []float32 {
	return j.dq[((b*j.p.Heads+h)*j.p.QLen+r)*j.p.Dim:][:n*j.p.Dim]
}

// loadTile copies n query rows, from row r on, and their sum of dQ so far.
func (j *job) loadTile(x *instance, b, h, r, n int, first bool) {
	f, w := j.args, &j.places
	x.load(w.q, &f.Q, b, h, r, n)
	x.load(w.o, &f.O, b, h, r, n)
	x.load(w.dout, &f.DO, b, h, r, n)
	x.load(w.lse, &f.LSE, b, h, r, n)
	if f.DLSE.IsZero() {
		x.zero(w.dlse, n)
	} else {
		x.load(w.dlse, &f.DLSE, b, h, r, n)
	}
	switch {
	case first:
		x.zero(w.dq, n*j.p.Dim)
	case j.gathers():
		to := x.at(w.dq, n*j.p.Dim)
		for i, v := range j.gathered(b, h, r, n) {
			binary.LittleEndian.PutUint32(to[4*i:], math.Float32bits(v))
		}
	default:
		x.load(w.dq, &f.DQ, b, h, r, n)
	}
}

// clearDQ writes dQ where there is no key.
func (j *job) clearDQ() {
	t := &j.args.DQ
	if j.p.QLen == 0 {
		return
	}
	for b := range j.p.Batch {
		for h := range j.p.Heads {
			for r := range j.p.QLen {
				at := t.Offset(b, h, r)
				if t.DType() == flashkit.Float32 {
					clear(t.Float32s()[at:][:j.p.Dim])
				} else {
					clear(t.Uint16s()[at:][:j.p.Dim])
				}
			}
		}
	}
}
