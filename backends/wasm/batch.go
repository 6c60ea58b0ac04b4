package wasm

import (
	"encoding/binary"

	"github.com/flashkit-go/flashkit"
)

// A batch is several KV heads of short sequences, with their query heads. The host stages all heads
// of the batch, writes a list of module calls, and enters the module once. Batching changes neither
// the module calls of a head nor their results.

const (
	batchTime  = 300e3     // target time of a batch in nanoseconds, predicted by the variant's timing
	batchBytes = 256 << 10 // maximum bytes of a batch's memory, so that it stays in the cache
	listWords  = 8         // words of a call in the list
	listEntry  = "calls"
)

// The function numbers in a list, as in calls.h. listForward and listBackward are the functions
// that pack keys. listForward+1 and listBackward+1 are for query rows without features,
// listForward+2 and listBackward+2 for query rows with features.
const (
	listForward  = 0
	listBackward = 3
	listGrads    = 6
)

// batchSize returns the number of KV heads per batch. It returns 0 if the plan has no batches, for
// example because one head has enough work.
func (x *plan) batchSize() int {
	c := x.c
	if x.v.isDecode() || !x.v.inVectors() || x.bias.wanted || min(c.QLen, c.KVLen) < 1 || max(c.QLen, c.KVLen) > tile {
		return 0
	}
	rows, keys := float64(x.group()*c.QLen), float64(c.KVLen)
	pair := 2 * float64(c.Dim+c.VDim) * x.v.timing.flop
	if c.Pass == flashkit.PassBackward {
		pair *= 2.5
	}
	pair += x.v.timing.pair + x.featurePair()
	time := rows*keys*pair + (rows+keys)*float64(c.Dim+c.VDim)/2*x.v.timing.element
	w, _ := x.placeBatch(lowest, 1)
	size := min(int(batchTime/time), int(batchBytes/(w.scratch-lowest)), ceil(x.heads(), minItems))
	if size < 2 {
		return 0
	}
	return size
}

// A batchStage is the layout of a batch. kv, v and blocks are strides in bytes between KV heads. q,
// o, lse, bias and mask are strides in bytes between query heads.
type batchStage struct {
	list           uint64 // offset of the list of calls
	kv, q, o, lse  uint64 // kv is the stride of K; the V of all heads follows the K of all heads
	v, bias, mask  uint64
	blocks         uint64 // stride of the parameter blocks; a KV head has one parameter block for each tile of rows
	heads, entries int    // KV heads of the batch, maximum module calls of a KV head
}

// placeBatch lays out the memory for a batch of the given number of KV heads. The batch begins at
// the offset from.
func (x *plan) placeBatch(from uint64, heads int) (w places, b batchStage) {
	at := from
	take := func(bytes uint64) uint64 {
		here := (at + 63) &^ 63
		at = here + bytes
		return here
	}
	up := func(bytes int) uint64 { return uint64(roundUp(bytes, 16)) }
	c, n := x.c, uint64(heads)
	perHead := x.group() * x.tiles(c.QLen)
	b = batchStage{heads: heads, entries: perHead + 2, blocks: uint64(4 * blockWords * perHead), kv: up(4 * c.KVLen * c.Dim), v: up(4 * c.KVLen * c.VDim),
		q: up(4 * c.QLen * c.Dim), o: up(4 * c.QLen * c.VDim), lse: up(4 * c.QLen), bias: uint64(4 * c.QLen * tile), mask: uint64(c.QLen * tile)}
	b.list, w.block = take(uint64(4*listWords*b.entries)*n), take(b.blocks*n)
	w.k, w.v = take(b.kv*n), take(b.v*n)
	n *= uint64(x.group())
	w.q, w.o, w.lse = take(b.q*n), take(b.o*n), take(b.lse*n)
	if c.Pass == flashkit.PassBackward {
		w.dout, w.dlse, w.dq = take(b.o*n), take(b.lse*n), take(b.q*n)
	}
	if c.Score.Bias {
		w.bias = take(b.bias * n)
	}
	if hidesPairs(c) {
		w.mask = take(b.mask * n)
	}
	w.scratchBytes = x.scratch()
	w.scratch = take(w.scratchBytes)
	take(4 * tile * uint64(max(c.Dim, c.VDim, tile))) // the module checks that memory for a whole tile follows each offset
	w.end = at
	return w, b
}

// of returns the places of a tile of query rows that begins at row i0. n is the number of the KV
// head in the batch, and r the number of the query head in the KV head's group.
func (b *batchStage) of(x *plan, w places, n, r, i0 int) places {
	head := uint64(n*x.group() + r)
	w.block += b.blocks*uint64(n) + uint64(4*blockWords*(r*x.tiles(x.c.QLen)+i0/x.rows))
	w.k, w.v = w.k+b.kv*uint64(n), w.v+b.v*uint64(n)
	move := func(at *uint64, head1 uint64, row int) {
		if *at != 0 {
			*at += head1*head + uint64(row*i0)
		}
	}
	move(&w.q, b.q, 4*x.c.Dim)
	move(&w.dq, b.q, 4*x.c.Dim)
	move(&w.o, b.o, 4*x.c.VDim)
	move(&w.dout, b.o, 4*x.c.VDim)
	move(&w.lse, b.lse, 4)
	move(&w.dlse, b.lse, 4)
	move(&w.bias, b.bias, 4*tile)
	move(&w.mask, b.mask, tile)
	return w
}

// batches claims and runs batches until none is left.
func (j *job) batches(x *instance) error {
	j.sinkGradients()
	_, stage := j.placeBatch(x.base, j.batch)
	for !j.stopped() {
		from := int(j.next.Add(1)-1) * j.batch
		if from >= j.heads() {
			break
		}
		to := min(from+j.batch, j.heads())
		x.listed = 0
		j.poison(x)
		for head := from; head < to; head++ {
			j.stageHead(x, &stage, head, head-from)
		}
		if x.listed > 0 {
			if err := x.call(j.ctx, listEntry, int(stage.list), x.listed); err != nil {
				return err
			}
		}
		for head := from; head < to; head++ {
			j.storeHead(x, &stage, head, head-from)
		}
	}
	return nil
}

// list adds a call to the list of the current batch.
func (x *instance) list(b *batchStage, function int, block uint64, i0, i1, j1, flags int) {
	to := x.at(b.list+uint64(4*listWords*x.listed), listWords)
	for i, word := range [listWords]int{function, int(block), i0, i1, 0, j1, flags, 0} {
		binary.LittleEndian.PutUint32(to[4*i:], uint32(word))
	}
	x.listed++
}

// inList returns the numbers in calls.h of the plan's functions: for keys and for query rows.
func (x *plan) inList() (keys, rows int) {
	if keys = listForward; x.v.pass == flashkit.PassBackward {
		keys = listBackward
	}
	if x.features != 0 {
		return keys, keys + 2
	}
	return keys, keys + 1
}

// stageHead stages one KV head and adds the head's module calls to the list. head is the number of
// the KV head in the call, and n the number of the KV head in the current batch.
func (j *job) stageHead(x *instance, stage *batchStage, head, n int) {
	b, g := head/j.c.KVHeads, head%j.c.KVHeads
	s := j.c.Seq(b)
	back := j.v.pass == flashkit.PassBackward
	if s.N == 0 && !back || s.M == 0 && back {
		return
	}
	keys, rows := j.inList()
	flags := flagFirst | flagLast
	if back {
		flags |= flagScaled
	}
	w := stage.of(&j.plan, j.places, n, 0, 0)
	if s.M > 0 {
		x.writeBlock(&j.plan, &w, &s, 0, s.M)
		j.loadKeys(x, w.k, &j.args.K, b, g, 0, s.M)
		j.loadKeys(x, w.v, &j.args.V, b, g, 0, s.M)
		x.list(stage, keys, w.block, 0, 0, s.M, 0)
	}
	for r := range j.group() {
		for t := range j.tiles(s.N) {
			i0, i1, lo, hi := j.tileRows(&s, t)
			w := stage.of(&j.plan, j.places, n, r, i0)
			x.writeBlock(&j.plan, &w, &s, 0, s.M)
			if lo == hi {
				hi = 0
			}
			j.stageRows(x, &w, &s, b, g*j.group()+r, i0, i1, hi)
			x.list(stage, rows, w.block, i0, i1, hi, flags)
		}
	}
	if back {
		x.list(stage, listGrads, w.block, 0, 0, s.M, 0)
	}
}

// stageRows copies rows [i0, i1) of query head h of sequence b to the stage at w. The rows see only
// keys below hi.
func (j *job) stageRows(x *instance, w *places, s *flashkit.Seq, b, h, i0, i1, hi int) {
	if j.features != 0 {
		x.writeScore(&j.plan, w, b, h, s.Diagonal)
	}
	if j.pairs {
		j.loadPairs(x, w, b, h, i0, i1, 0, hi)
	}
	if j.v.pass == flashkit.PassBackward {
		j.loadTile(x, w, s, h, i0, i1-i0, true)
		return
	}
	f := j.args
	x.load(w.q, &f.Q, f.Q.Offset(s.QBatch, h, s.Q0+i0), i1-i0)
	if j.c.Carry {
		x.load(w.o, &f.O, f.O.Offset(s.QBatch, h, s.Q0+i0), i1-i0)
		x.load(w.lse, &f.LSE, f.LSE.Offset(s.QBatch, h, s.Q0+i0), i1-i0)
	}
}

// storeHead writes the outputs of one KV head to the call's tensors. head and n have the same
// meaning as in stageHead.
func (j *job) storeHead(x *instance, stage *batchStage, head, n int) {
	f, b, g := j.args, head/j.c.KVHeads, head%j.c.KVHeads
	s := j.c.Seq(b)
	back := j.v.pass == flashkit.PassBackward
	if s.N == 0 && !back || s.M == 0 && back {
		return
	}
	for r := range j.group() {
		h, w := g*j.group()+r, stage.of(&j.plan, j.places, n, r, 0)
		if s.N == 0 {
			break
		}
		if back {
			x.store(w.dq, &f.DQ, f.DQ.Offset(s.QBatch, h, s.Q0), s.N)
			continue
		}
		x.store(w.o, &f.O, f.O.Offset(s.QBatch, h, s.Q0), s.N)
		if !f.LSE.IsZero() {
			x.store(w.lse, &f.LSE, f.LSE.Offset(s.QBatch, h, s.Q0), s.N)
		}
	}
	if back {
		w := stage.of(&j.plan, j.places, n, 0, 0)
		to, _ := j.c.KeyRun(&f.DK, b, g, 0)
		x.store(w.k, &f.DK, to, s.M)
		to, _ = j.c.KeyRun(&f.DV, b, g, 0)
		x.store(w.v, &f.DV, to, s.M)
	}
}

// plan returns the plan of a call. The plan has no batches if a batch does not fit in the memory of
// an instance.
func (s *sandbox) plan(v *variant, c *flashkit.Call) plan {
	x := newPlan(v, c)
	if x.batch > 0 && x.memory() > min(s.limit, maxMemory) {
		x.batch = 0
	}
	return x
}
