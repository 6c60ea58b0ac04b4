package ring

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/flashkit-go/flashkit"
)

// gradients are sums in float32, in the shapes of the rank's outputs or of a step's keys.
type gradients struct{ dq, dk, dv, dbias flashkit.Tensor }

// backward computes the backward pass step by step. What a step gives the keys of another
// rank goes back to it during the next step, and is added there.
func (j *job) backward(ctx context.Context) error {
	if x := j.only(); x != nil && j.size == 1 {
		sub := x.args(&j.a, j.a.K, j.a.V, 0)
		sub.Sink, sub.DSink = j.a.Sink, j.a.DSink
		j.stats.Steps = 1
		return j.runner.Backward(ctx, x.p, &sub)
	}
	own := gradients{
		dq: j.sum(slotSumDQ, j.a.DQ), dk: j.sum(slotSumDK, j.a.DK), dv: j.sum(slotSumDV, j.a.DV), dbias: j.sum(slotSumBias, j.a.DBias),
	}
	var now, before, arriving gradients // of the step's keys, those on their way, those that come
	err := j.walk(ctx, func(t int, k, v flashkit.Tensor) error {
		now = own
		if t > 0 {
			now.dk = j.buffer(slotDK0+t%2*2, flashkit.Float32, k.Shape())
			now.dv = j.buffer(slotDV0+t%2*2, flashkit.Float32, v.Shape())
			j.math.fill(now.dk, 0)
			j.math.fill(now.dv, 0)
		}
		for i := range j.steps[t].calls {
			if err := j.differentiate(ctx, &j.steps[t].calls[i], k, v, j.from(t), &now); err != nil {
				return err
			}
		}
		return nil
	}, func(e *exchange, t int) {
		if t < 2 {
			return
		}
		before, arriving = now, gradients{}
		if len(j.steps[t-1].calls) > 0 {
			e.to((j.rank-(t-1)+j.size)%j.size, before.dk, before.dv)
		}
		if g := j.steps[t-1].give; g.n > 0 {
			arriving.dk = j.buffer(slotDK2, flashkit.Float32, [4]int{g.nb, j.p.KVHeads, g.n, j.p.Dim})
			arriving.dv = j.buffer(slotDV2, flashkit.Float32, [4]int{g.nb, j.p.KVHeads, g.n, j.p.VDim})
			e.from((j.rank+t-1)%j.size, arriving.dk, arriving.dv)
		}
	}, func(t int) {
		if !isEmpty(arriving.dk) {
			g := j.steps[t-1].give
			j.math.add(g.of(own.dk), arriving.dk)
			j.math.add(g.of(own.dv), arriving.dv)
			arriving = gradients{}
		}
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

// round writes sums to outputs that are not float32.
func (j *job) round(sums *gradients) {
	for _, x := range [...][2]flashkit.Tensor{{j.a.DQ, sums.dq}, {j.a.DK, sums.dk}, {j.a.DV, sums.dv}, {j.a.DBias, sums.dbias}} {
		if x[0].DType() != flashkit.Float32 && !x[0].IsZero() {
			j.math.convert(x[0], x[1])
		}
	}
}

// sum returns where an output is summed, all zeros: itself where it is float32.
func (j *job) sum(slot int, t flashkit.Tensor) flashkit.Tensor {
	if t.IsZero() {
		return t
	}
	if t.DType() != flashkit.Float32 {
		t = j.buffer(slot, flashkit.Float32, t.Shape())
	}
	j.math.fill(t, 0)
	return t
}

// differentiate computes one call of the backward pass and adds what it gives to g.
func (j *job) differentiate(ctx context.Context, x *call, k, v flashkit.Tensor, from int, g *gradients) error {
	p, sub := x.p, x.args(&j.a, k, v, from)
	p.Score.Sink = false
	at := x.k
	at.r -= from
	sub.DQ = j.buffer(slotDQ, p.DType, sub.Q.Shape())
	sub.DK = j.buffer(slotPK, p.DType, sub.K.Shape())
	sub.DV = j.buffer(slotPV, p.DType, sub.V.Shape())
	if !sub.DBias.IsZero() {
		sub.DBias = j.buffer(slotBias, sub.Bias.DType(), sub.Bias.Shape())
	}
	if err := j.runner.Backward(ctx, p, &sub); err != nil {
		return err
	}
	j.math.add(x.q.of(g.dq), sub.DQ)
	j.math.add(at.of(g.dk), sub.DK)
	j.math.add(at.of(g.dv), sub.DV)
	if !sub.DBias.IsZero() {
		j.math.add(x.pair.of(g.dbias), sub.DBias)
	}
	return nil
}

// sink computes DSink, which depends on the rows alone: that of calls without keys, summed
// over all ranks.
func (j *job) sink(ctx context.Context) error {
	if j.a.DSink.IsZero() {
		return nil
	}
	total := zeros(flashkit.Float32, j.a.DSink.Shape())
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
		none := func(dim int) flashkit.Tensor { return zeros(p.DType, [4]int{p.Batch, p.KVHeads, 0, dim}) }
		sub.K, sub.V, sub.DK, sub.DV = none(p.Dim), none(p.VDim), none(p.Dim), none(p.VDim)
		sub.DQ = j.buffer(slotDQ, p.DType, sub.Q.Shape())
		sub.Sink, sub.DSink = j.a.Sink, zeros(flashkit.Float32, j.a.DSink.Shape())
		if err := j.runner.Backward(ctx, p, &sub); err != nil {
			return err
		}
		j.math.add(total, sub.DSink)
	}
	if err := j.reduce(ctx, total); err != nil {
		return err
	}
	return copyTensor(j.a.DSink, total)
}

// reduce sums a tensor over all ranks, in their order, so that all have the same bits.
func (j *job) reduce(ctx context.Context, t flashkit.Tensor) error {
	const most = 1 << 16 // elements at a time
	s := t.Shape()
	for b := range s[0] {
		for h := range s[1] {
			for r := range s[2] {
				row := t.Float32s()[t.Offset(b, h, r):][:s[3]]
				for len(row) > 0 {
					n := min(len(row), most)
					if err := j.reduceSome(ctx, row[:n]); err != nil {
						return err
					}
					row = row[n:]
				}
			}
		}
	}
	return nil
}

func (j *job) reduceSome(ctx context.Context, x []float32) error {
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
