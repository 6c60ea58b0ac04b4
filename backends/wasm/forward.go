package wasm

import "github.com/flashkit-go/flashkit"

// forward claims and runs tiles of query rows, head by head, until none is left. The instance keeps
// the packed keys of its current KV head. A tile packs only keys that no earlier tile on the
// instance has packed.
func (j *job) forward(x *instance) error {
	blocks := ceil(j.c.KVLen, tile)
	if cap(x.packed) < blocks {
		x.packed = make([]bool, blocks)
	}
	x.packed = x.packed[:blocks]
	var s flashkit.Seq
	for head := -1; !j.stopped(); {
		next, item := j.takeTile(head)
		if next < 0 {
			break
		}
		if next != head {
			clear(x.packed)
			j.poison(x)
			head = next
			s = j.c.Seq(head / j.c.KVHeads)
			x.writeBlock(&j.plan, &j.places, &s, 0, s.M)
		}
		// With a causal mask the last rows see the most keys. Tiles of these rows run first, so
		// that the tiles that run last are short and workers finish together.
		h, t := item%j.group(), j.tiles(s.N)-1-item/j.group()
		if err := j.forwardTile(x, &s, head, h, t); err != nil {
			return err
		}
	}
	return nil
}

func (j *job) forwardTile(x *instance, s *flashkit.Seq, head, h, t int) error {
	f, w := j.args, &j.places
	b, g := head/j.c.KVHeads, head%j.c.KVHeads
	h += g * j.group()
	i0, i1, lo, hi := j.tileRows(s, t)
	j.poisonTile(x)
	for k := lo / tile; k*tile < hi; k++ {
		if x.packed[k] || !j.sees(b, h, i0, i1, k*tile, k*tile+tile) {
			continue
		}
		if j.stopped() {
			return nil
		}
		if err := j.stageKeys(x, b, g, k*tile, min(k*tile+tile, s.M)); err != nil {
			return err
		}
		x.packed[k] = true
	}
	x.load(w.q, &f.Q, f.Q.Offset(s.QBatch, h, s.Q0+i0), i1-i0)
	if j.features != 0 {
		x.writeScore(&j.plan, w, b, h, s.Diagonal)
	}
	if j.c.Carry {
		x.load(w.o, &f.O, f.O.Offset(s.QBatch, h, s.Q0+i0), i1-i0)
		x.load(w.lse, &f.LSE, f.LSE.Offset(s.QBatch, h, s.Q0+i0), i1-i0)
	}
	flags := flagFirst
	for j0 := lo / tile * tile; flags&flagLast == 0; j0 += j.step {
		j1 := min(j0+j.step, hi)
		if j1 >= hi {
			flags |= flagLast
		}
		if j.stopped() {
			return nil
		}
		if !j.sees(b, h, i0, i1, j0, j1) {
			if j1 = j0; flags == 0 {
				continue
			}
		}
		if j.pairs {
			j.loadPairs(x, w, b, h, i0, i1, j0, j1)
		}
		if err := x.call(j.ctx, j.function, int(w.block), i0, i1, j0, max(j0, j1), flags); err != nil {
			return err
		}
		flags &^= flagFirst
	}
	x.store(w.o, &f.O, f.O.Offset(s.QBatch, h, s.Q0+i0), i1-i0)
	if !f.LSE.IsZero() {
		x.store(w.lse, &f.LSE, f.LSE.Offset(s.QBatch, h, s.Q0+i0), i1-i0)
	}
	return nil
}

// stageKeys stages and packs the keys [j0, j1) of KV head g of sequence b.
func (j *job) stageKeys(x *instance, b, g, j0, j1 int) error {
	j.poisonKeys(x)
	j.loadKeys(x, j.places.k, &j.args.K, b, g, j0, j1)
	j.loadKeys(x, j.places.v, &j.args.V, b, g, j0, j1)
	return x.call(j.ctx, j.v.keys, int(j.places.block), j0, j1)
}

// loadKeys copies the keys [j0, j1) of K or V to offset in the module's memory, page by page.
func (j *job) loadKeys(x *instance, offset uint64, t *flashkit.Tensor, b, g, j0, j1 int) {
	for j0 < j1 {
		from, n := j.c.KeyRun(t, b, g, j0)
		n = min(n, j1-j0)
		x.load(offset, t, from, n)
		offset += uint64(4 * n * t.Shape()[3])
		j0 += n
	}
}
