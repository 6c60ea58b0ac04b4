package ring

import (
	"cmp"
	"context"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// A headRun is the range [from, to) of KV heads.
type headRun struct{ from, to int }

func (x headRun) len() int { return x.to - x.from }

// runsOf cuts KV heads into at most the given number of parts.
func runsOf(heads, parts int) (list []headRun) {
	parts = min(parts, heads)
	for i := range parts {
		list = append(list, headRun{heads * i / parts, heads * (i + 1) / parts})
	}
	return list
}

// A turn is one unit of compute: a step for all KV heads, or a step for a run of KV heads.
type turn struct {
	step  int
	heads headRun
}

// turnsOf returns the turns of all steps. The first step is one turn. Each later step has one turn
// per part of the heads.
func turnsOf(steps, heads, parts int) (list []turn) {
	list = append(list, turn{0, headRun{0, heads}})
	for t := 1; t < steps; t++ {
		for _, x := range runsOf(heads, parts) {
			list = append(list, turn{t, x})
		}
	}
	return list
}

// halfSlot returns one of two buffers in a slot. Each buffer is large enough for the keys of any
// turn except the first.
func (j *job) halfSlot(slot, which int, t flashkit.DType, s [4]int) flashkit.Tensor {
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

// headParts cuts the KV heads into parts, in the same way on all ranks. All heads are one part if a
// feature has parameters per head, or per pair of a row and a key. No kernel runs while the keys of
// the first part travel. The first part therefore has only enough heads to fill a GPU with rows,
// and at most half of the heads. If Device.Rounds is 2 and the cut is zig-zag, the parts have the
// same size. The keys of each later part travel during the kernel of the previous part.
func (j *job) headParts() []headRun {
	heads, most, rows := j.p.KVHeads, j.dev.Rounds(), 1
	if j.p.Features()&(featureScopes.head|featureScopes.pair) != 0 || heads < 2 {
		return runsOf(heads, 1)
	}
	for r := range j.size {
		rows = max(rows, j.a.Q.Shape()[0]*j.cut.QLen(r)*j.p.Heads/heads)
	}
	first := min((fillingRows+rows-1)/rows, (heads+1)/2)
	if j.cut.isZigZag() {
		if rows /= 2; most < mostRounds { // a kernel has only one of the rank's two runs of rows
			return runsOf(heads, most)
		}
	}
	list, at := []headRun{{0, first}}, first
	if rest := heads - first; most >= mostRounds && rest*travelRows > first*rows { // more heads than travel during the first part
		at += min(rest, max(2*first, (rest*travelRows+travelRows+rows-1)/(travelRows+rows)))
		list = append(list, headRun{first, at})
	}
	if at < heads {
		list = append(list, headRun{at, heads})
	}
	return list
}

const (
	fillingRows = 1 << 15 // query rows of all heads that keep all multiprocessors of a GPU busy
	travelRows  = 4400    // number of query rows of one KV head for which a kernel takes the same time as sending the head's keys
	mostRounds  = 3
)

// of returns a view of t with only the run's heads. t has `each` heads per KV head.
func (x headRun) of(t flashkit.Tensor, each int) flashkit.Tensor {
	if t.IsZero() {
		return t
	}
	s := t.Shape()
	s[1] = x.len() * each
	return window(t, min(t.Offset(0, x.from*each, 0), t.Len()), s)
}

// restrict narrows a call to the run's heads and returns the query heads per KV head. K and V are
// not cut, because they already hold only the run's heads.
func (x headRun) restrict(p *flashkit.Problem, a *flashkit.Args) (group int) {
	if group = p.Heads / max(1, p.KVHeads); x.len() == p.KVHeads {
		return group
	}
	p.KVHeads, p.Heads = x.len(), x.len()*group
	a.Origin = within(p, a.Origin, flashkit.Origin{Head: x.from * group})
	for _, t := range [...]*flashkit.Tensor{&a.Q, &a.O, &a.LSE, &a.DO, &a.DLSE, &a.DQ} {
		*t = x.of(*t, group)
	}
	for _, t := range [...]*flashkit.Tensor{&a.Bias, &a.DBias, &a.Mask, &a.Slopes} {
		*t = x.ofPairs(*t, group)
	}
	return group
}

// ofPairs returns a view of a Bias, DBias or Mask with only the run's heads, as headRun.of does for
// other tensors. A tensor with one head for all heads stays whole.
func (x headRun) ofPairs(t flashkit.Tensor, each int) flashkit.Tensor {
	if !t.IsZero() && t.Shape()[1] == 1 {
		return t
	}
	return x.of(t, each)
}

// forwardByHeads computes the forward pass of an ordered Ring on a device. The rank's longest
// contiguous run of rows takes one call per part of the heads, while the keys of the next part
// travel. The rank's other runs of rows wait for all keys: a kernel that begins while another
// kernel ends would take the multiprocessors that messages need. Messages begin before the rank
// copies its own keys. A head's results do not depend on the other heads of the call.
func (j *job) forwardByHeads(ctx context.Context) error {
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
	e, arrive := j.gatherHeads(&w, parts)
	if err := j.start(ctx, &e); err != nil {
		return err
	}
	err := j.copyOwn(&w)
	if err == nil {
		err = j.forwardParts(ctx, &w, parts, arrive, places)
	}
	if err != nil {
		j.abort(ctx, err)
		return err
	}
	return j.wait(ctx, &e, Progress{Steps: j.stats.Steps, From: -1})
}

// forwardParts first computes the rank's longest run of rows, one part of the heads after the other
// as keys arrive. It then computes the other runs of rows. Calls write disjoint rows or heads, and
// may therefore overlap.
func (j *job) forwardParts(ctx context.Context, w *flashkit.Args, parts []headRun, arrive []int, places []place) error {
	steps := len(parts) + len(places) - 1
	long := longest(places)
	for i, x := range parts {
		if err := j.watch(Progress{Steps: steps, From: -1}, func() error { return j.dev.Arrived(ctx, arrive[i]) }); err != nil {
			return err
		}
		if long < 0 {
			continue
		}
		if err := j.forwardHeads(ctx, w, x, &places[long], steps); err != nil {
			return err
		}
	}
	for i := len(places) - 1; i >= 0; i-- { // last runs first: they see most keys under a causal mask
		if i == long {
			continue
		}
		if err := j.forwardHeads(ctx, w, headRun{0, j.p.KVHeads}, &places[i], steps); err != nil {
			return err
		}
	}
	return nil
}

// longest returns the index of the place with the most rows, or -1 without places. If several
// places have the most rows, it returns the last of them.
func longest(places []place) (at int) {
	at = -1
	for i := range places {
		if at < 0 || places[i].shard.n >= places[at].shard.n {
			at = i
		}
	}
	return at
}

// copyOwn copies the rank's own K and V into the whole tensors of w, while the GPU is idle.
func (j *job) copyOwn(w *flashkit.Args) error {
	return cmp.Or(j.cut.copy(j.rank, byKeys, j.a.K, w.K, j.dev.Copy), j.cut.copy(j.rank, byKeys, j.a.V, w.V, j.dev.Copy))
}

// gatherHeads returns an exchange in which each rank sends its K and V to all other ranks, one
// round per part of the heads. arrive has the number of messages received by the end of each round.
func (j *job) gatherHeads(w *flashkit.Args, parts []headRun) (e exchange, arrive []int) {
	mine := slices.Concat(j.pieces(j.rank, byKeys, j.a.K, false), j.pieces(j.rank, byKeys, j.a.V, false))
	theirs := make([][]flashkit.Tensor, j.size)
	for r := range theirs {
		theirs[r] = slices.Concat(j.pieces(r, byKeys, w.K, true), j.pieces(r, byKeys, w.V, true))
	}
	e.apart = j.largeHeads()
	for i, heads := range parts {
		e.round = i
		for step := 1; step < j.size; step++ {
			to, from := (j.rank+step)%j.size, (j.rank-step+j.size)%j.size
			e.to(to, heads.ofAll(mine)...)
			e.from(from, heads.ofAll(theirs[from])...)
		}
		arrive = append(arrive, len(e.receive))
	}
	return e, arrive
}

func (x headRun) ofAll(list []flashkit.Tensor) (some []flashkit.Tensor) {
	for _, t := range list {
		some = append(some, x.of(t, 1))
	}
	return some
}

// largeHeads reports whether the keys of one KV head are a large message on every rank.
func (j *job) largeHeads() bool {
	const large = 2 << 20
	least := large
	for r := range j.size {
		for _, x := range j.cut.places(r, true) {
			least = min(least, x.shard.n*min(j.p.Dim, j.p.VDim)*j.p.KVType().Size())
		}
	}
	return least >= large
}

// forwardHeads computes the forward pass of some heads, for a run of the rank's rows.
func (j *job) forwardHeads(ctx context.Context, w *flashkit.Args, heads headRun, x *place, steps int) error {
	p, sub := j.rowsProblem(x, w)
	sub.K, sub.V = heads.of(sub.K, 1), heads.of(sub.V, 1)
	heads.restrict(&p, &sub)
	j.dev.Beside()
	return cmp.Or(j.compute(ctx, p, &sub, steps), j.math.err)
}
