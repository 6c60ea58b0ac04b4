package ring

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/flashkit-go/flashkit"
)

// gradients are sums of gradients, for the rank's own rows and keys or for the keys of a step. A
// sum is a float32 tensor. A sum of at most two addends may instead have the problem's type.
type gradients struct{ dq, dk, dv, dbias flashkit.Tensor }

type addition struct{ sum, part flashkit.Tensor }

// gradientParts is the number of parts into which a step's KV heads are divided if gradients travel
// between ranks. At any time, one part is computed, one is sent and one is received. With two
// parts, the buffers need the memory of three halves of a shard. Only the last part travels without
// concurrent compute.
const gradientParts = 2

// backward computes the backward pass step by step. The gradients of a step's keys travel during
// the next step, to the rank that holds these keys.
func (j *job) backward(ctx context.Context) error {
	if x := j.soleCall(); x != nil && j.size == 1 {
		sub := x.args(&j.a, j.a.K, j.a.V, 0)
		sub.Sink, sub.DSink = j.a.Sink, j.a.DSink
		j.stats.Steps = 1
		if err := j.agreeOnce(ctx); err != nil {
			return err
		}
		return j.runner.Backward(ctx, x.p, &sub)
	}
	rows, keys := j.firstWrites()
	own := gradients{
		dq: j.sum(slotSumDQ, j.a.DQ, rows), dk: j.sum(slotSumDK, j.a.DK, keys), dv: j.sum(slotSumDV, j.a.DV, keys),
		dbias: j.sum(slotSumBias, j.a.DBias, firstPart{}),
	}
	now := own               // gradients of the turn's keys, which are sent afterward
	var arriving [2]addition // gradients of the rank's own keys
	err := j.rotate(ctx, gradientParts, func(i int, k, v flashkit.Tensor) error {
		now = own
		x := j.turns[i]
		if x.step > 0 {
			now.dk, now.dv = j.remoteGrads(slotDK0+i%2*2, k.Shape(), v.Shape(), j.steps[x.step].one)
		}
		for c := range j.steps[x.step].calls {
			if err := j.backwardCall(ctx, &j.steps[x.step].calls[c], k, v, x, &now, rows.all && x.step == 0, keys.all && x.step == 0); err != nil {
				return err
			}
		}
		return nil
	}, func(e *exchange, i int) {
		if i >= 2 {
			arriving = j.addGradients(e, j.turns[i-1], &now, &own)
		}
	}, func() {
		for i := range arriving {
			if x := &arriving[i]; !isEmpty(x.part) {
				j.math.add(x.sum, x.part)
			}
		}
		arriving = [2]addition{}
	})
	if err == nil {
		err = j.sink(ctx)
	}
	if err == nil && j.biasRepeats && !own.dbias.IsZero() {
		err = j.reduce(ctx, own.dbias)
	}
	if err != nil {
		return err
	}
	j.round(&own)
	return nil
}

// addGradients adds to e the messages with the gradients of turn x. This rank sends the gradients
// of the turn's keys to the rank that holds these keys, and receives gradients of its own keys. The
// result lists the additions to make when the gradients have arrived.
func (j *job) addGradients(e *exchange, x turn, now, own *gradients) (list [2]addition) {
	st := &j.steps[x.step]
	if len(st.calls) > 0 {
		e.to((j.rank-x.step+j.size)%j.size, now.dk, now.dv)
	}
	if g := st.give; g.n > 0 {
		n := [4]int{g.nb, x.heads.len(), g.n, j.p.Dim}
		m := n
		m[3] = j.p.VDim
		kind := j.gradType(st.giveOne)
		list[0] = addition{x.heads.of(g.of(own.dk), 1), j.buffer(slotDK2, kind, n)}
		list[1] = addition{x.heads.of(g.of(own.dv), 1), j.buffer(slotDV2, kind, m)}
		e.from((j.rank+x.step)%j.size, list[0].part, list[1].part)
	}
	return list
}

// A firstPart describes the first call that contributes to a sum of gradients. If the field all is
// true, the call writes every element, so the sum need not be zeroed. If the field few is true, at
// most one more call contributes.
type firstPart struct{ all, few bool }

// firstWrites returns the firstPart of the sum of DQ, and the firstPart of the sums of DK and DV.
func (j *job) firstWrites() (rows, keys firstPart) {
	calls := j.steps[0].calls
	if len(calls) != 1 {
		return rows, keys
	}
	arrive := 0
	for t := range j.steps[1:] {
		if j.steps[t+1].give.n > 0 {
			arrive++
		}
	}
	s := j.a.K.Shape()
	rows = firstPart{j.coversRows(&calls[0]), j.laterCalls() <= 1}
	keys = firstPart{calls[0].k == part{0, s[0], 0, s[2]} && (!j.p.Ragged || j.cut.packedK), arrive <= 1}
	return rows, keys
}

// gradType returns the type in which gradients of keys travel. The parameter one is true if a
// single call computes all of these gradients.
func (j *job) gradType(one bool) flashkit.DType {
	if one {
		return j.p.DType
	}
	return flashkit.Float32
}

// remoteGrads returns buffers for the gradients of another rank's keys. It zeroes the buffers
// unless one call computes all of these gradients.
func (j *job) remoteGrads(slot int, k, v [4]int, one bool) (dk, dv flashkit.Tensor) {
	dk, dv = j.buffer(slot, j.gradType(one), k), j.buffer(slot+1, j.gradType(one), v)
	if !one {
		j.math.fill(dk, 0)
		j.math.fill(dv, 0)
	}
	return dk, dv
}

// round rounds each sum to the type of the rank's output and writes the result there. If the types
// are equal, the sum is the output, and round does nothing.
func (j *job) round(sums *gradients) {
	for _, x := range [...][2]flashkit.Tensor{{j.a.DQ, sums.dq}, {j.a.DK, sums.dk}, {j.a.DV, sums.dv}, {j.a.DBias, sums.dbias}} {
		if x[0].DType() != x[1].DType() && !x[0].IsZero() {
			j.math.convert(x[0], x[1])
		}
	}
}

// sum returns the tensor in which the parts of output t are added. The result is t itself if t is
// float32, or if the first part writes all of t and at most one part follows. Otherwise the result
// is a float32 buffer. sum zeroes the tensor unless the first part writes all of it.
func (j *job) sum(slot int, t flashkit.Tensor, first firstPart) flashkit.Tensor {
	if t.IsZero() {
		return t
	}
	if t.DType() != flashkit.Float32 && !(first.all && first.few) {
		t = j.buffer(slot, flashkit.Float32, t.Shape())
	}
	if !first.all {
		j.math.fill(t, 0)
	}
	return t
}

// backwardCall computes one call for the heads of a turn and adds the call's gradients to g. If
// rows is true, no earlier call has contributed to DQ, and this call writes DQ of all rows directly
// to the rank's output. If keys is true, the same holds for DK and DV.
func (j *job) backwardCall(ctx context.Context, x *call, k, v flashkit.Tensor, t turn, g *gradients, rows, keys bool) error {
	from := j.firstKey(t.step)
	p, sub := x.p, x.args(&j.a, k, v, from)
	p.Score.Sink = false
	group := t.heads.restrict(&p, &sub)
	at := x.k
	at.r -= from
	one := t.step > 0 && j.steps[t.step].one
	slot := slotDQ
	if j.alternate(one && sub.DBias.IsZero()) {
		slot = slotDQ1
	}
	if !rows {
		sub.DQ = j.buffer(slot, p.DType, sub.Q.Shape())
	}
	switch {
	case keys:
		sub.DK, sub.DV = j.a.DK, j.a.DV
	case one:
		sub.DK, sub.DV = g.dk, g.dv
	default:
		sub.DK, sub.DV = j.buffer(slotPK, p.DType, sub.K.Shape()), j.buffer(slotPV, p.DType, sub.V.Shape())
	}
	bias := sub.DBias
	if !bias.IsZero() {
		sub.DBias = j.buffer(slotBias, sub.Bias.DType(), sub.Bias.Shape())
	}
	if err := j.runner.Backward(ctx, p, &sub); err != nil {
		return err
	}
	j.accumulate(rows, t.heads.of(x.q.of(g.dq), group), sub.DQ)
	if !one {
		j.accumulate(keys, at.of(g.dk), sub.DK)
		j.accumulate(keys, at.of(g.dv), sub.DV)
	}
	if !bias.IsZero() {
		j.math.add(t.heads.ofPairs(x.pair.of(g.dbias), group), sub.DBias)
	}
	return nil
}

// accumulate adds a part to a sum. If first is true, the part is the first addend. accumulate then
// converts the part to the sum's type, unless the types are equal: in that case the kernel has
// already written the part to the sum.
func (j *job) accumulate(first bool, sum, part flashkit.Tensor) {
	switch {
	case !first:
		j.math.add(sum, part)
	case sum.DType() != part.DType():
		j.math.convert(sum, part)
	}
}

// sink computes DSink, summed over all ranks. DSink depends only on the query rows, so its kernel
// calls have no keys.
func (j *job) sink(ctx context.Context) error {
	if j.a.DSink.IsZero() {
		return nil
	}
	total := j.buffer(slotSumSink, flashkit.Float32, j.a.DSink.Shape())
	j.math.fill(total, 0)
	for _, x := range j.shares() {
		p := j.p
		p.Batch, p.QLen, p.KVLen, p.Ragged, p.Band = x.nb, x.n, 0, false, flashkit.Band{}
		p.Score = flashkit.Score{Sink: true}
		if x.nb == 0 || x.n == 0 {
			continue
		}
		c := call{p: p, q: x}
		sub := c.args(&j.a, flashkit.Tensor{}, flashkit.Tensor{}, 0)
		sub.Bias, sub.DBias, sub.Mask, sub.Slopes = flashkit.Tensor{}, flashkit.Tensor{}, flashkit.Tensor{}, flashkit.Tensor{}
		none := func(dim int) flashkit.Tensor { return j.buffer(slotPK, p.DType, [4]int{p.Batch, p.KVHeads, 0, dim}) }
		sub.K, sub.V, sub.DK, sub.DV = none(p.Dim), none(p.VDim), none(p.Dim), none(p.VDim)
		sub.DQ = j.buffer(slotDQ, p.DType, sub.Q.Shape())
		sub.Sink, sub.DSink = j.a.Sink, j.buffer(slotSink, flashkit.Float32, j.a.DSink.Shape())
		if err := j.runner.Backward(ctx, p, &sub); err != nil {
			return err
		}
		j.math.add(total, sub.DSink)
	}
	if err := j.reduce(ctx, total); err != nil {
		return err
	}
	j.math.convert(j.a.DSink, total)
	return nil
}

// reduce sums a tensor over all ranks in rank order, so that all ranks get the same bits.
func (j *job) reduce(ctx context.Context, t flashkit.Tensor) error {
	s := t.Shape()
	for b := range s[0] {
		for h := range s[1] {
			for r := range s[2] {
				if err := j.reduceRow(ctx, window(t, t.Offset(b, h, r), [4]int{1, 1, 1, s[3]})); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (j *job) reduceRow(ctx context.Context, t flashkit.Tensor) error {
	const most = 1 << 16
	all := t.Float32s()
	if t.Owner() != nil {
		all = make([]float32, t.Shape()[3])
		if err := j.dev.Get(all, t); err != nil {
			return err
		}
	}
	for row := all[:t.Shape()[3]]; len(row) > 0; {
		n := min(len(row), most)
		if err := j.reduceChunk(ctx, row[:n]); err != nil {
			return err
		}
		row = row[n:]
	}
	if t.Owner() != nil {
		return j.dev.Put(t, all)
	}
	return nil
}

func (j *job) reduceChunk(ctx context.Context, x []float32) error {
	mine := make([]byte, 0, 4*len(x))
	for _, f := range x {
		mine = binary.LittleEndian.AppendUint32(mine, math.Float32bits(f))
	}
	all := make([]byte, len(mine)*j.size)
	if err := j.group.Gather(ctx, mine, all); err != nil {
		return err
	}
	for i := range x {
		sum := float32(0)
		for r := range j.size {
			sum += math.Float32frombits(binary.LittleEndian.Uint32(all[r*len(mine)+4*i:]))
		}
		x[i] = sum
	}
	return nil
}
