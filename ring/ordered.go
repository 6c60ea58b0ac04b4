package ring

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// ordered computes a pass of an ordered Ring. Each kernel call has all keys or all rows. Sums
// therefore have the same order as on a single device.
func (j *job) ordered(ctx context.Context) error {
	if j.size == 1 {
		j.stats.Steps = 1
		return j.kernel.Compute(ctx, j.p, &j.a)
	}
	if j.pass == flashkit.PassForward {
		return j.orderedForward(ctx)
	}
	return j.orderedBackward(ctx)
}

func (j *job) orderedForward(ctx context.Context) error {
	if j.p.Ragged && !j.p.Carry {
		j.math.zero(j.a.O)
		if !j.a.LSE.IsZero() {
			j.math.fill(j.a.LSE, float32(math.Inf(-1)))
		}
	}
	if j.dev != nil {
		return j.forwardByHeads(ctx)
	}
	w := j.a
	if err := j.gather(ctx, slotAllK, byKeys, &w.K, &w.V); err != nil {
		return err
	}
	places := j.cut.places(j.rank, false)
	for i := range places {
		p, sub := j.rowsProblem(&places[i], &w)
		if err := j.compute(ctx, p, &sub, len(places)); err != nil {
			return err
		}
	}
	return nil
}

func (j *job) orderedBackward(ctx context.Context) error {
	w := j.a // gather replaces w's tensors by whole tensors, with all keys and all rows
	if err := j.gather(ctx, slotAllK, byKeys, &w.K, &w.V); err != nil {
		return err
	}
	if err := j.gather(ctx, slotAllQ, byRows, &w.Q, &w.O, &w.LSE, &w.DO, &w.DLSE); err != nil {
		return err
	}
	for i, x := range [...]struct {
		t       *flashkit.Tensor
		repeats bool
	}{{&w.Bias, j.biasRepeats}, {&w.Mask, j.maskRepeats}} {
		if x.repeats {
			continue
		}
		if err := j.gather(ctx, slotAllPairs+i, byPairs, x.t); err != nil {
			return err
		}
	}
	for _, t := range [...]flashkit.Tensor{j.a.DQ, j.a.DK, j.a.DV, j.a.DBias} {
		if j.p.Ragged && !t.IsZero() {
			j.math.zero(t)
		}
	}
	own := j.a
	own.K, own.V = w.K, w.V
	rows, keys := j.cut.places(j.rank, false), j.cut.places(j.rank, true)
	steps := len(rows) + max(1, len(keys))
	for _, x := range rows {
		p, sub := j.rowsProblem(&x, &own)
		sub.DK, sub.DV = j.buffer(slotPK, p.DType, sub.K.Shape()), j.buffer(slotPV, p.DType, sub.V.Shape())
		if err := j.compute(ctx, p, &sub, steps); err != nil {
			return err
		}
	}
	if !j.a.DSink.IsZero() {
		j.math.zero(j.a.DSink) // DSink stays 0 if there is no batch
	}
	if len(keys) == 0 && len(j.cut.seqs) > 0 && !j.p.Ragged {
		keys = []place{{shard: part{nb: j.p.Batch}, whole: part{nb: j.p.Batch}}} // DSink needs no keys
	}
	for _, x := range keys {
		p, sub := j.keysProblem(&x, &w)
		sub.DSink = j.a.DSink
		if err := j.compute(ctx, p, &sub, steps); err != nil {
			return err
		}
	}
	return nil
}

// compute runs the kernel for one step, and reports progress. The parameter steps is the total
// number of steps.
func (j *job) compute(ctx context.Context, p flashkit.Problem, args *flashkit.Args, steps int) error {
	begin := time.Now()
	err := j.kernel.Compute(ctx, p, args)
	j.stats.Compute += time.Since(begin)
	if j.stats.Steps++; err == nil {
		j.report(Progress{Step: j.stats.Steps, Steps: max(steps, j.stats.Steps), From: -1})
	}
	return err
}

// rowsProblem returns the problem and the arguments for a run of the rank's rows with all keys of
// w.
func (j *job) rowsProblem(x *place, w *flashkit.Args) (flashkit.Problem, flashkit.Args) {
	s := &j.cut.seqs[x.seq]
	p, sub := j.p, *w
	all := part{s.KVBatch, x.shard.nb, 0, w.K.Shape()[2]}
	if j.p.Ragged {
		p.Batch = 1
		sub.Seqs = &flashkit.Sequences{}
		if j.cut.packedQ {
			sub.Seqs.QStarts = []int32{0, int32(x.shard.n)}
		}
		if all.n = s.M; j.cut.packedK {
			sub.Seqs.KVStarts = []int32{0, int32(s.M)}
			all.r = s.K0
		}
		p.KVLen = s.M
	}
	p.QLen = x.shard.n
	p.Band = p.Band.Shift(s.Diagonal + x.from - p.Band.Diagonal(x.shard.n, s.M))
	q := x.shard
	sub.Q, sub.O, sub.LSE, sub.DO, sub.DLSE, sub.DQ = q.of(j.a.Q), q.of(j.a.O), q.of(j.a.LSE), q.of(j.a.DO), q.of(j.a.DLSE), q.of(j.a.DQ)
	sub.K, sub.V = all.of(w.K), all.of(w.V)
	at := pair{x.seq, x.shard.nb, x.local, x.shard.n, 0, s.M}
	sub.Bias, sub.DBias, sub.Mask = at.of(j.a.Bias), at.of(j.a.DBias), at.of(j.a.Mask)
	sub.Slopes = j.slopes(x)
	sub.DSink = flashkit.Tensor{}
	j.setOrigin(&p, &sub, flashkit.Origin{Batch: x.seq, Row: x.from})
	return p, sub
}

// setOrigin sets the position of a call's rows and keys in the whole problem, which dropout needs.
func (j *job) setOrigin(p *flashkit.Problem, sub *flashkit.Args, o flashkit.Origin) {
	if !j.p.Ragged {
		o.Batch = 0 // the call has all sequences
	}
	p.Score.Origin = p.Score.Dropout != 0
	sub.Origin = within(p, j.a.Origin, o)
}

// keysProblem returns the problem and the arguments for a run of the rank's keys with all rows of
// w.
func (j *job) keysProblem(x *place, w *flashkit.Args) (flashkit.Problem, flashkit.Args) {
	s := &j.cut.seqs[x.seq]
	p, sub := j.p, *w
	all := part{s.QBatch, x.shard.nb, 0, w.Q.Shape()[2]}
	if j.p.Ragged {
		p.Batch = 1
		sub.Seqs = &flashkit.Sequences{}
		if all.n = s.N; j.cut.packedQ {
			sub.Seqs.QStarts = []int32{0, int32(s.N)}
			all.r = s.Q0
		}
		if j.cut.packedK {
			sub.Seqs.KVStarts = []int32{0, int32(x.shard.n)}
		}
		p.QLen = s.N
	}
	p.KVLen = x.shard.n
	p.Band = p.Band.Shift(s.Diagonal - x.from - p.Band.Diagonal(s.N, x.shard.n))
	sub.Q, sub.O, sub.LSE, sub.DO, sub.DLSE = all.of(w.Q), all.of(w.O), all.of(w.LSE), all.of(w.DO), all.of(w.DLSE)
	k := x.shard
	sub.K, sub.V, sub.DK, sub.DV = k.of(j.a.K), k.of(j.a.V), k.of(j.a.DK), k.of(j.a.DV)
	sub.DQ = j.buffer(slotDQ, p.DType, sub.Q.Shape())
	at := pair{x.seq, x.shard.nb, 0, s.N, x.from, x.shard.n}
	sub.Bias, sub.Mask, sub.DBias = at.of(w.Bias), at.of(w.Mask), flashkit.Tensor{}
	sub.Slopes = j.slopes(x)
	j.setOrigin(&p, &sub, flashkit.Origin{Batch: x.seq, Key: x.from})
	return p, sub
}

func (j *job) slopes(x *place) flashkit.Tensor {
	if s := j.a.Slopes; j.p.Ragged && !s.IsZero() && s.Shape()[0] > 1 {
		return sub(s, x.seq, 1, 0, 1)
	}
	return j.a.Slopes
}

// whole returns a whole tensor, and copies this rank's shard into it.
func (j *job) whole(slot int, k kind, shard flashkit.Tensor) (whole flashkit.Tensor, err error) {
	n := j.cut.wholeShape(k, shard)
	if j.dev == nil {
		whole = zeros(shard.DType(), n)
		return whole, j.cut.copy(j.rank, k, shard, whole, copyTensor)
	}
	if whole = j.buffer(slot, shard.DType(), n); j.p.Ragged && shard.DType() != flashkit.Bool {
		j.math.fill(whole, 0)
	}
	return whole, cmp.Or(j.math.err, j.cut.copy(j.rank, k, shard, whole, j.dev.Copy))
}

// pieces returns views of a rank's places in t. If whole is true, t is a whole tensor. Otherwise t
// is the rank's shard.
func (j *job) pieces(rank int, k kind, t flashkit.Tensor, whole bool) (list []flashkit.Tensor) {
	for _, x := range j.cut.places(rank, k == byKeys) {
		at, all := x.parts(k, t)
		if whole {
			at = all
		}
		list = append(list, at.of(t))
	}
	return list
}

// gather replaces each shard in list by the whole tensor: every rank sends its shard to all other
// ranks. On a device, the whole tensor of list[i] is in buffer slot+i.
func (j *job) gather(ctx context.Context, slot int, k kind, list ...*flashkit.Tensor) error {
	for i, t := range list {
		if t.IsZero() {
			continue
		}
		whole, err := j.whole(slot+i, k, *t)
		if err != nil {
			return err
		}
		for step := 1; step < j.size; step++ {
			var e exchange
			to, from := (j.rank+step)%j.size, (j.rank-step+j.size)%j.size
			e.to(to, j.pieces(j.rank, k, *t, false)...)
			e.from(from, j.pieces(from, k, whole, true)...)
			if err := j.start(ctx, &e); err != nil {
				return err
			}
			if err := j.wait(ctx, &e, Progress{Steps: 1}); err != nil {
				return err
			}
		}
		*t = whole
	}
	return nil
}
