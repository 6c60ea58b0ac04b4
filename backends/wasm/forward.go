package wasm

import "github.com/flashkit-go/flashkit"

// forward takes tiles of query rows, one head after the other. The module keeps
// the packed keys of the head at hand; a tile packs those that it is the first
// to see.
func (j *job) forward(x *instance) error {
	x.writeBlock(&j.plan, &j.places, 0, j.p.KVLen)
	blocks := ceil(j.p.KVLen, tile)
	if cap(x.packed) < blocks {
		x.packed = make([]bool, blocks)
	}
	x.packed = x.packed[:blocks]
	for head := -1; !j.stopped(); {
		next, item := j.takeTile(head)
		if next < 0 {
			break
		}
		if next != head {
			clear(x.packed)
			head = next
		}
		// The last rows of a causal mask see the most keys, so they come first.
		h, t := item%j.group(), j.tiles()-1-item/j.group()
		if err := j.forwardTile(x, head, h, t); err != nil {
			return err
		}
	}
	return nil
}

func (j *job) forwardTile(x *instance, head, h, t int) error {
	p, f, w := &j.p, j.args, &j.places
	b, g := head/p.KVHeads, head%p.KVHeads
	h += g * j.group()
	i0, i1, lo, hi := j.tileRows(t)
	for k := lo / tile; k*tile < hi; k++ {
		if x.packed[k] {
			continue
		}
		if j.stopped() {
			return nil
		}
		if err := j.stageKeys(x, &f.K, &f.V, b, g, k*tile, min(k*tile+tile, p.KVLen)); err != nil {
			return err
		}
		x.packed[k] = true
	}
	x.load(w.q, &f.Q, b, h, i0, i1-i0)
	flags := flagFirst
	for j0 := lo / tile * tile; flags&flagLast == 0; j0 += j.step {
		j1 := min(j0+j.step, hi)
		if j1 >= hi {
			flags |= flagLast
		}
		if j.stopped() {
			return nil
		}
		if err := x.call(j.ctx, j.v.rows, int(w.block), i0, i1, j0, max(j0, j1), flags); err != nil {
			return err
		}
		flags &^= flagFirst
	}
	x.store(w.o, &f.O, b, h, i0, i1-i0)
	if !f.LSE.IsZero() {
		x.store(w.lse, &f.LSE, b, h, i0, i1-i0)
	}
	return nil
}

// stageKeys hands the keys [j0, j1) of a head to the module.
func (j *job) stageKeys(x *instance, k, v *flashkit.Tensor, b, g, j0, j1 int) error {
	x.load(j.places.k, k, b, g, j0, j1-j0)
	x.load(j.places.v, v, b, g, j0, j1-j0)
	return x.call(j.ctx, j.v.keys, int(j.places.block), j0, j1)
}
