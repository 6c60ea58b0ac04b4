package wasm

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/flashkit-go/flashkit"
)

// backward claims and runs items until none is left. An item is a chunk of keys of one KV head, or
// of all heads that share elements of dBias. Only this item writes dK, dV and dBias of these keys.
// The item loops over the query rows that see the keys. For each tile of query rows, the chunks add
// to dQ in the order of their keys: a chunk waits until the previous chunk has finished the tile.
// Workers claim items in ascending order, so the first unfinished item never waits.
func (j *job) backward(x *instance) error {
	j.sinkGradients()
	n := j.items()
	for !j.stopped() {
		item := int(j.next.Add(1) - 1)
		if item >= n {
			break
		}
		switch err := j.backwardChunk(x, item); err {
		case nil:
			j.progress[item].Store(allFinished)
		case errStopped:
			return nil
		default:
			return err
		}
	}
	return nil
}

// errStopped ends an item of a call that has stopped. The item then does not count its current tile
// as finished. Otherwise the next chunk could read dQ while the previous chunk still writes it.
var errStopped = errors.New("stopped")

// backwardChunk runs the KV heads of an item in order.
func (j *job) backwardChunk(x *instance, item int) error {
	chunk, owner := item/j.owners(), item%j.owners()
	b0, b1, g0, g1 := 0, j.c.Batch, 0, j.c.KVHeads
	if !j.bias.allHeads {
		g0 = owner % j.c.KVHeads
		g1, owner = g0+1, owner/j.c.KVHeads
	}
	if !j.bias.allSeqs {
		b0, b1 = owner, owner+1
	}
	done := int64(0)
	for b := b0; b < b1; b++ {
		s := j.c.Seq(b)
		for g := g0; g < g1; g++ {
			if err := j.backwardHead(x, item, &done, &s, b, g, chunk*j.chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

// backwardHead runs one KV head of an item, whose first key is k0. done counts the tiles of query
// rows that the item has finished.
func (j *job) backwardHead(x *instance, item int, done *int64, s *flashkit.Seq, b, g, k0 int) error {
	f, w := j.args, &j.places
	k1 := min(k0+j.chunk, s.M)
	if k0 >= k1 {
		*done += int64(j.group() * j.tiles(s.N))
		return nil
	}
	j.poison(x)
	x.writeBlock(&j.plan, w, s, k0, k1-k0)
	for k := k0; k < k1; k += tile {
		if err := j.stageKeys(x, b, g, k, min(k+tile, k1)); err != nil {
			return err
		}
	}
	for h := g * j.group(); h < (g+1)*j.group() && s.N > 0; h++ {
		if j.features != 0 {
			x.writeScore(&j.plan, w, b, h, s.Diagonal)
			clear(x.columns[:])
		}
		for t := range j.tiles(s.N) {
			if j.stopped() {
				return errStopped
			}
			if err := j.backwardTile(x, item, *done, s, b, h, t, k0, k1); err != nil {
				return err
			}
			*done++
			j.progress[item].Store(*done)
		}
		if j.bias.allRows {
			j.addColumns(x, b, h, k0, k1)
		}
	}
	return j.storeKeys(x, f, b, g, k0, k1)
}

// storeKeys writes dK and dV of the keys [k0, k1) to the call's tensors.
func (j *job) storeKeys(x *instance, f *flashkit.Args, b, g, k0, k1 int) error {
	w := &j.places
	for k := k0; k < k1; k += tile {
		n := min(tile, k1-k)
		if err := x.call(j.ctx, j.v.grads, int(w.block), k, k+n); err != nil {
			return err
		}
		to, _ := j.c.KeyRun(&f.DK, b, g, k)
		x.store(w.k, &f.DK, to, n)
		to, _ = j.c.KeyRun(&f.DV, b, g, k)
		x.store(w.v, &f.DV, to, n)
	}
	return nil
}

// backwardTile adds the terms of tile t of query head h and the keys [k0, k1) to the gradients.
func (j *job) backwardTile(x *instance, item int, done int64, s *flashkit.Seq, b, h, t, k0, k1 int) error {
	w, dq := &j.places, &j.args.DQ
	i0, i1, lo, hi := j.tileRows(s, t)
	to := dq.Offset(s.QBatch, h, s.Q0+i0)
	if lo == hi && k0 == 0 {
		x.zero(w.dq, (i1-i0)*j.c.Dim)
		x.store(w.dq, dq, to, i1-i0)
	}
	first, last := k0 <= lo, hi <= k1
	lo, hi = max(lo, k0), min(hi, k1)
	if lo >= hi {
		return nil
	}
	if !first && !j.waitFor(item-j.owners(), done+1) {
		return errStopped
	}
	j.poisonTile(x)
	j.loadTile(x, w, s, h, i0, i1-i0, first)
	flags := flagFirst
	if !first {
		flags |= flagMore
	}
	for j0 := k0 + (lo-k0)/tile*tile; flags&flagLast == 0; j0 += j.step {
		j1 := min(j0+j.step, hi)
		if j1 == hi {
			flags |= flagLast
			if last {
				flags |= flagScaled
			}
		}
		if j.stopped() {
			return errStopped
		}
		if !j.bias.wanted && !j.sees(b, h, i0, i1, j0, j1) {
			if j1 = j0; flags == 0 {
				continue
			}
		}
		if j.pairs {
			j.loadPairs(x, w, b, h, i0, i1, j0, j1)
		}
		if err := x.call(j.ctx, j.function, int(w.block), i0, i1, j0, j1, flags); err != nil {
			return err
		}
		if j.bias.wanted {
			j.addBias(x, b, h, i0, i1, j0, j1, k0)
		}
		flags &^= flagFirst | flagMore
	}
	if last || !j.gathers() {
		x.store(w.dq, dq, to, i1-i0)
		return nil
	}
	for i := range j.gathered(s, h, i0, i1-i0) {
		j.gathered(s, h, i0, i1-i0)[i] = get(x.at(w.dq, i+1), i)
	}
	return nil
}

// gathers reports whether float32 workspace keeps the sums of dQ between chunks of keys. This is so
// if DQ has 16 bits and there are several chunks.
func (x *plan) gathers() bool { return x.c.DType != flashkit.Float32 && x.chunks() > 1 }

// gathered returns n rows of the workspace for dQ of query head h, the first of which is row r.
func (j *job) gathered(s *flashkit.Seq, h, r, n int) []float32 {
	shape := j.args.DQ.Shape()
	return j.dq[((s.QBatch*shape[1]+h)*shape[2]+s.Q0+r)*shape[3]:][:n*shape[3]]
}

// loadTile copies n query rows of head h, the first of which is row r, to the stage at w. Unless
// first is true, loadTile also copies dQ of these rows, summed over earlier chunks.
func (j *job) loadTile(x *instance, w *places, s *flashkit.Seq, h, r, n int, first bool) {
	f := j.args
	load := func(offset uint64, t *flashkit.Tensor) { x.load(offset, t, t.Offset(s.QBatch, h, s.Q0+r), n) }
	load(w.q, &f.Q)
	load(w.o, &f.O)
	load(w.dout, &f.DO)
	load(w.lse, &f.LSE)
	if f.DLSE.IsZero() {
		x.zero(w.dlse, n)
	} else {
		load(w.dlse, &f.DLSE)
	}
	switch {
	case first:
	case j.gathers():
		to := x.at(w.dq, n*j.c.Dim)
		for i, v := range j.gathered(s, h, r, n) {
			binary.LittleEndian.PutUint32(to[4*i:], math.Float32bits(v))
		}
	default:
		load(w.dq, &f.DQ)
	}
}
