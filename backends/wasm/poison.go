package wasm

import (
	"encoding/binary"
	"math"
)

// Poison makes all later calls fill their workspace with NaN before use: instance memory at the
// start of each head and tile of query rows, and the sums of dQ between chunks. Package conformance
// uses Poison to find reads of stale memory; see conformance.Poisoner. Results keep their bits, but
// calls become slower.
func (b *Backend) Poison() { b.box.poisoned.Store(true) }

// poisonBits is NaN as a float32 and as two 16-bit numbers. As four bytes of a mask, poisonBits
// hides nothing.
const poisonBits = 0x7ffa7ffa

// poison fills all memory of the plan. It runs before the parameter block of a head is written.
func (j *job) poison(x *instance) { x.poison(x.base, j.places.end) }

// poisonTile fills the parts of the stage and scratch that do not persist between tiles of query
// rows.
func (j *job) poisonTile(x *instance) {
	w := &j.places
	x.poison(w.q, w.scratch)
	x.poison(w.scratch+j.scratchKeys(), w.end)
}

// poisonKeys fills the memory of K and V in the stage.
func (j *job) poisonKeys(x *instance) {
	w, d, dv := &j.places, uint64(j.c.Dim), uint64(j.c.VDim)
	x.poison(w.k, w.k+4*tile*d)
	x.poison(w.v, w.v+4*tile*dv)
	if w.rawK != 0 {
		x.poison(w.rawK, w.rawK+2*tile*d)
		x.poison(w.rawV, w.rawV+2*tile*dv)
	}
}

// poisonPairs fills the memory of bias and mask in the stage at w.
func (j *job) poisonPairs(x *instance, w *places) {
	if j.batch > 0 {
		return // the stages of a batch overlap and are poisoned together
	}
	if j.c.Score.Bias {
		x.poison(w.bias, w.bias+4*tile*tile)
	}
	if hidesPairs(j.c) {
		x.poison(w.mask, w.mask+tile*tile)
	}
}

// poison fills the bytes [from, to) with poisonBits if the backend is poisoned. The number of bytes
// is a multiple of 4.
func (x *instance) poison(from, to uint64) {
	if !x.poisoned || from == to {
		return
	}
	all := x.memory[from:to]
	binary.LittleEndian.PutUint32(all, poisonBits)
	for done := 4; done < len(all); done *= 2 {
		copy(all[done:], all[:done])
	}
}

// poisonSums fills the workspace for the sums of dQ between chunks.
func (j *job) poisonSums(s *sandbox) {
	if !s.poisoned.Load() || !j.gathers() {
		return
	}
	for i := range j.dq {
		j.dq[i] = math.Float32frombits(poisonBits)
	}
}

// BatchInvariant returns true: the results of a sequence have the same bits alone and in any batch.
// See conformance.BatchInvariant.
func (b *Backend) BatchInvariant() bool { return true }
