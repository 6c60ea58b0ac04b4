package ring

import (
	"context"
	"math"

	"github.com/flashkit-go/flashkit"
)

// forward computes the forward pass step by step. If O is float32, each kernel call continues the
// result of the earlier calls. Otherwise the calls' results are merged in float32, so that O is
// rounded once. If there are only two results, the kernel writes the first result directly to O.
func (j *job) forward(ctx context.Context) error {
	if x := j.soleCall(); x != nil {
		sub := x.args(&j.a, j.a.K, j.a.V, 0)
		p := x.p
		sub.Sink = j.a.Sink
		j.stats.Steps = 1
		if err := j.agreeOnce(ctx); err != nil {
			return err
		}
		return j.runner.Forward(ctx, p, &sub)
	}
	rows := j.a.Q.Shape()
	if j.a.LSE.IsZero() {
		j.a.LSE = j.buffer(slotSumLSE, flashkit.Float32, [4]int{rows[0], rows[1], rows[2], 1})
	}
	o, fresh := j.a.O, j.fresh() && !j.p.Carry && !j.p.Score.Sink
	if j.p.DType != flashkit.Float32 && !(fresh && j.laterCalls() <= 1) {
		j.a.O = j.buffer(slotSumO, flashkit.Float32, o.Shape())
	}
	if !fresh {
		j.initOutputs(o)
	}
	err := j.rotate(ctx, 1, func(t int, k, v flashkit.Tensor) error {
		for i := range j.steps[t].calls {
			x, first := &j.steps[t].calls[i], fresh && t == 0
			if err := j.forwardCall(ctx, x, k, v, j.firstKey(t), first, o); err != nil {
				return err
			}
		}
		return nil
	}, nil, nil)
	if err == nil && j.a.O.DType() != o.DType() {
		j.math.convert(o, j.a.O)
	}
	return err
}

// alternate reports whether the next call on a device uses the second set of buffers. If beside is
// true, the next call may begin while the previous call ends.
func (j *job) alternate(beside bool) (odd bool) {
	if j.dev == nil {
		return false
	}
	if beside {
		j.dev.Beside()
	}
	j.count++
	return j.count%2 == 1
}

// fresh reports whether the first call writes all rows, so that O and LSE need no initial values.
func (j *job) fresh() bool {
	return len(j.steps[0].calls) == 1 && j.coversRows(&j.steps[0].calls[0])
}

func (j *job) laterCalls() (n int) {
	for t := range j.steps[1:] {
		n += len(j.steps[t+1].calls)
	}
	return n
}

// firstKey returns the index at which step t's keys begin in the tensors of the rank that holds
// these keys.
func (j *job) firstKey(t int) int {
	if t == 0 {
		return 0 // the rank's own tensors
	}
	return j.steps[t].need.r
}

// coversRows reports whether a call reads and writes all of the rank's rows.
func (j *job) coversRows(x *call) bool {
	s := j.a.Q.Shape()
	return x.q == part{0, s[0], 0, s[2]} && (!j.p.Ragged || j.cut.packedQ)
}

// soleCall returns the rank's only call. It returns nil if the rank has several calls, or if
// another rank reads this rank's keys.
func (j *job) soleCall() (x *call) {
	for t := range j.steps {
		if t > 0 && (j.steps[t].give.n > 0 || len(j.steps[t].calls) > 0) {
			return nil
		}
	}
	if calls := j.steps[0].calls; len(calls) == 1 && j.coversRows(&calls[0]) && calls[0].k.n == j.a.K.Shape()[2] {
		return &calls[0]
	}
	return nil
}

// initOutputs sets O and LSE to the carried result, if there is one. Otherwise it sets O to 0 and
// LSE to -Inf. In both cases it then adds the sink.
func (j *job) initOutputs(o flashkit.Tensor) {
	switch {
	case j.p.Carry && j.p.DType != flashkit.Float32:
		j.math.convert(j.a.O, o)
	case j.p.Carry:
	default:
		j.math.fill(j.a.O, 0)
		j.math.fill(j.a.LSE, float32(math.Inf(-1)))
	}
	if !j.p.Carry && !j.p.Score.Sink {
		return
	}
	for _, x := range j.shares() {
		o, lse := x.of(j.a.O), x.of(j.a.LSE)
		if j.dev != nil {
			j.math.merge(o, lse, flashkit.Tensor{}, j.sinks(lse))
			continue
		}
		j.math.each(o, func(b, h int) {
			sink := math.Inf(-1)
			if j.p.Score.Sink {
				sink = float64(j.a.Sink.Float32s()[j.a.Sink.Offset(0, h, 0)])
			}
			for i := range x.n {
				l := &lse.Float32s()[lse.Offset(b, h, i)]
				addSink(l, sink, o.Float32s()[o.Offset(b, h, i):][:o.Shape()[3]])
			}
		})
	}
	if j.p.Ragged && !j.cut.packedQ {
		j.pad()
	}
}

// sinks returns a device tensor of lse's shape in which each row has the sink of its head, or -Inf
// without a sink.
func (j *job) sinks(lse flashkit.Tensor) flashkit.Tensor {
	if j.p.Score.Sink {
		s := sub(j.a.Sink, 0, 1, 0, 1)
		return window(s, 0, lse.Shape()).WithStrides(0, s.Strides()[1], 0)
	}
	none := j.buffer(slotLSE, flashkit.Float32, [4]int{1, 1, 1, 1})
	j.math.fill(none, float32(math.Inf(-1)))
	return window(none, 0, lse.Shape()).WithStrides(0, 0, 0)
}

// addSink adds a sink to a row's softmax. In a row without keys, O becomes 0, or NaN if the sink is
// NaN or +Inf.
func addSink(lse *float32, sink float64, o []float32) {
	sum, w, _ := mergeWeights(float64(*lse), sink)
	if math.IsInf(float64(*lse), -1) && sum == sum {
		clear(o)
	} else if w != 1 {
		for i := range o {
			o[i] *= w
		}
	}
	*lse = float32(sum)
}

// pad sets the padding rows after each sequence: O to 0 and LSE to -Inf.
func (j *job) pad() {
	for b := range j.p.Batch {
		n := 0
		for _, s := range shares(j.cut.rows[j.rank], false) {
			if s.batch == b {
				n = lens(s.spans)
			}
		}
		x := part{b, 1, n, j.a.O.Shape()[2] - n}
		j.math.fill(x.of(j.a.O), 0)
		j.math.fill(x.of(j.a.LSE), float32(math.Inf(-1)))
	}
}

// shares returns the rank's rows without padding.
func (j *job) shares() (list []part) {
	if !j.p.Ragged {
		return []part{{0, j.p.Batch, 0, j.cut.QLen(j.rank)}}
	}
	for _, s := range shares(j.cut.rows[j.rank], j.cut.packedQ) {
		list = append(list, part{s.batch, 1, s.at, lens(s.spans)})
	}
	return list
}

// forwardCall computes one call of the forward pass. If first is true, the kernel writes directly
// to own, which is the rank's O.
func (j *job) forwardCall(ctx context.Context, x *call, k, v flashkit.Tensor, from int, first bool, own flashkit.Tensor) error {
	p, sub := x.p, x.args(&j.a, k, v, from)
	p.Score.Sink = false
	if p.DType == flashkit.Float32 {
		p.Carry = !first
		return j.runner.Forward(ctx, p, &sub)
	}
	p.Carry = false
	if first {
		sub.O = x.q.of(own)
		if err := j.runner.Forward(ctx, p, &sub); err != nil {
			return err
		}
		if j.a.O.DType() != own.DType() {
			j.math.convert(j.a.O, own)
		}
		return nil
	}
	o, lse := sub.O, sub.LSE
	slot := slotO
	if j.alternate(true) {
		slot = slotO1
	}
	sub.O = j.buffer(slot, p.DType, o.Shape())
	sub.LSE = j.buffer(slot+1, flashkit.Float32, lse.Shape())
	if err := j.runner.Forward(ctx, p, &sub); err != nil {
		return err
	}
	j.math.merge(o, lse, sub.O, sub.LSE)
	return nil
}
