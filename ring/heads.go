package ring

import (
	"cmp"
	"context"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// mostHeadParts is in how many parts K and V travel at most before an ordered forward pass on a device.
const mostHeadParts = 2

// A headRun is key heads, from one up to but not including another.
type headRun struct{ from, to int }

func (x headRun) len() int { return x.to - x.from }

// runsOf cuts key heads in at most so many parts.
func runsOf(heads, parts int) (list []headRun) {
	parts = min(parts, heads)
	for i := range parts {
		list = append(list, headRun{heads * i / parts, heads * (i + 1) / parts})
	}
	return list
}

// A turn is what is computed at one time: a step, or of its key heads a run.
type turn struct {
	step  int
	heads headRun
}

// turnsOf returns the turns of a call: the first step, and every other one in so many parts.
func turnsOf(steps, heads, parts int) (list []turn) {
	list = append(list, turn{0, headRun{0, heads}})
	for t := 1; t < steps; t++ {
		for _, x := range runsOf(heads, parts) {
			list = append(list, turn{t, x})
		}
	}
	return list
}

// half returns one of two buffers in a slot, each large enough for the keys of every turn but the first.
func (j *job) half(slot, which int, t flashkit.DType, s [4]int) flashkit.Tensor {
	most := 0
	for _, x := range j.turns[1:] {
		need := &j.steps[x.step].need
		most = max(most, need.nb*x.heads.len()*need.n*s[3])
	}
	const aligned = 64
	most = (most + aligned - 1) / aligned * aligned
	if j.buffer(slot, t, [4]int{1, 1, 2, most}).IsZero() {
		return flashkit.Tensor{}
	}
	return j.slots[slot].tensor(t, which*most, s)
}

// headParts cuts the key heads in parts. What has numbers of its own for each head is left whole. Nothing hides the
// keys of the first part. Where tiles are alike, those are the keys of the fewest heads whose rows fill a GPU.
func (j *job) headParts() []headRun {
	heads := j.p.KVHeads
	switch s := j.p.Score; {
	case s.ALiBi || s.Bias || s.Mask || s.Sink || heads < 2:
		return runsOf(heads, 1)
	case j.cut.isZigZag():
		return runsOf(heads, mostHeadParts)
	}
	n := j.a.Q.Shape()
	rows := max(1, n[0]*n[2]*j.p.Heads/heads)
	first := min((fillingRows+rows-1)/rows, (heads+1)/2)
	return []headRun{{0, first}, {first, heads}}
}

// fillingRows are as many query rows, of all heads, as all multiprocessors of a GPU have under way.
const fillingRows = 1 << 15

// of returns those heads of a tensor that has so many for each key head.
func (x headRun) of(t flashkit.Tensor, each int) flashkit.Tensor {
	if t.IsZero() {
		return t
	}
	s := t.Shape()
	s[1] = x.len() * each
	return window(t, min(t.Offset(0, x.from*each, 0), t.Len()), s)
}

// narrow makes a call one of those heads alone. Its keys, which travel so, have no others. It returns how
// many heads there are for each key head.
func (x headRun) narrow(p *flashkit.Problem, a *flashkit.Args) (group int) {
	if group = p.Heads / max(1, p.KVHeads); x.len() == p.KVHeads {
		return group
	}
	p.KVHeads, p.Heads = x.len(), x.len()*group
	a.Origin = within(p, a.Origin, flashkit.Origin{Head: x.from * group})
	for _, t := range [...]*flashkit.Tensor{&a.Q, &a.O, &a.LSE, &a.DO, &a.DLSE, &a.DQ} {
		*t = x.of(*t, group)
	}
	for _, t := range [...]*flashkit.Tensor{&a.Bias, &a.DBias, &a.Mask, &a.Slopes} {
		*t = x.pairs(*t, group)
	}
	return group
}

// pairs is of for tensors whose heads may repeat.
func (x headRun) pairs(t flashkit.Tensor, each int) flashkit.Tensor {
	if !t.IsZero() && t.Shape()[1] == 1 {
		return t
	}
	return x.of(t, each)
}

// byHeads computes a forward pass on a device with all keys in one call for each head and run of rows: beside the kernels
// for some heads the keys of the next heads travel. Messages begin before the rank copies its own keys. A head's results are
// the same whatever other heads are in the call.
func (j *job) byHeads(ctx context.Context) error {
	w := j.a
	for i, x := range [...]struct{ whole, own *flashkit.Tensor }{{&w.K, &j.a.K}, {&w.V, &j.a.V}} {
		*x.whole = j.buffer(slotAllK+i, x.own.DType(), j.cut.wholeShape(byKeys, *x.own))
		if j.p.Ragged {
			j.math.fill(*x.whole, 0)
		}
	}
	if j.math.err != nil {
		return j.math.err
	}
	parts, places := j.headParts(), j.cut.places(j.rank, false)
	var e exchange
	var arrive []int // how many messages there are up to those of a part
	for i, x := range parts {
		e.round = i
		j.gatherHeads(&e, &w, x)
		arrive = append(arrive, len(e.receive))
	}
	if err := j.start(ctx, &e); err != nil {
		return err
	}
	at := Progress{Steps: len(parts) * len(places), From: -1}
	for i, x := range parts {
		copies := j.dev.Copy
		if i > 0 {
			copies = j.dev.CopyBeside
		}
		err := j.copyHeads(&w, x, copies)
		if err == nil {
			err = j.watch(at, func() error { return j.dev.Arrived(ctx, arrive[i]) })
		}
		if err == nil {
			err = j.attendHeads(ctx, &w, x, places, at.Steps)
		}
		if err != nil {
			j.giveUp(ctx, err)
			return err
		}
	}
	return j.wait(ctx, &e, at)
}

// copyHeads copies some heads of the rank's own keys and values to their places in the whole.
func (j *job) copyHeads(w *flashkit.Args, heads headRun, copies func(dst, src flashkit.Tensor) error) error {
	for _, t := range [...][2]flashkit.Tensor{{w.K, j.a.K}, {w.V, j.a.V}} {
		to, from := j.pieces(j.rank, byKeys, t[0], true), j.pieces(j.rank, byKeys, t[1], false)
		for i := range to {
			if err := copies(heads.of(to[i], 1), heads.of(from[i], 1)); err != nil {
				return err
			}
		}
	}
	return nil
}

// gatherHeads adds to e the keys and values of some heads, which each rank sends to all.
func (j *job) gatherHeads(e *exchange, w *flashkit.Args, heads headRun) {
	for step := 1; step < j.size; step++ {
		to, from := (j.rank+step)%j.size, (j.rank-step+j.size)%j.size
		var mine, theirs []flashkit.Tensor
		for _, t := range [...][2]flashkit.Tensor{{j.a.K, w.K}, {j.a.V, w.V}} {
			for _, x := range j.pieces(j.rank, byKeys, t[0], false) {
				mine = append(mine, heads.of(x, 1))
			}
			for _, x := range j.pieces(from, byKeys, t[1], true) {
				theirs = append(theirs, heads.of(x, 1))
			}
		}
		e.to(to, mine...)
		e.from(from, theirs...)
	}
}

// attendHeads computes some heads of all of the rank's rows, the last ones, which see most under a causal mask, first. Each
// call may begin while the one before ends: they write rows or heads of their own.
func (j *job) attendHeads(ctx context.Context, w *flashkit.Args, heads headRun, places []place, steps int) error {
	for _, x := range slices.Backward(places) {
		p, sub := j.rowsOf(&x, w)
		sub.K, sub.V = heads.of(sub.K, 1), heads.of(sub.V, 1)
		heads.narrow(&p, &sub)
		j.dev.Beside()
		if err := cmp.Or(j.compute(ctx, p, &sub, steps), j.math.err); err != nil {
			return err
		}
	}
	return nil
}
