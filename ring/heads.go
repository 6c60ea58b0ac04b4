package ring

import (
	"cmp"
	"context"

	"github.com/flashkit-go/flashkit"
)

// mostHeadParts is in how many parts K and V travel at most before an ordered forward pass on a device.
const mostHeadParts = 4

// A run of key heads, from one up to but not including another.
type headRun struct{ from, to int }

// headParts cuts the key heads in parts. What has numbers of its own for each head is left whole.
func (j *job) headParts() (list []headRun) {
	n := min(mostHeadParts, j.p.KVHeads)
	if s := j.p.Score; s.ALiBi || s.Bias || s.Mask || s.Sink {
		n = min(1, n)
	}
	for i := range n {
		list = append(list, headRun{j.p.KVHeads * i / n, j.p.KVHeads * (i + 1) / n})
	}
	return list
}

// of returns those heads of a tensor that has so many for each key head.
func (x headRun) of(t flashkit.Tensor, each int) flashkit.Tensor {
	if t.IsZero() {
		return t
	}
	s := t.Shape()
	s[1] = (x.to - x.from) * each
	return window(t, min(t.Offset(0, x.from*each, 0), t.Len()), s)
}

// orderedByHeads computes an ordered forward pass on a device: beside the kernels for some heads the keys
// of the next heads travel. A head's results are the same whatever other heads are in the call.
func (j *job) orderedByHeads(ctx context.Context) (err error) {
	w := j.a
	if w.K, err = j.whole(slotAllK, byKeys, j.a.K); err == nil {
		w.V, err = j.whole(slotAllV, byKeys, j.a.V)
	}
	if err != nil {
		return err
	}
	parts, places := j.headParts(), j.cut.places(j.rank, false)
	var e exchange
	for i := 0; i <= len(parts); i++ {
		e = exchange{}
		if i < len(parts) {
			j.gatherHeads(&e, &w, parts[i])
		}
		if err := j.start(ctx, &e); err != nil {
			return err
		}
		if i > 0 {
			err = j.attendHeads(ctx, &w, parts[i-1], places, len(parts)*len(places))
		}
		if err != nil {
			j.giveUp(ctx, err)
			return err
		}
		if err := j.wait(ctx, &e, Progress{Step: j.stats.Steps, Steps: len(parts) * len(places)}); err != nil {
			return err
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
			for _, x := range j.cut.places(j.rank, true) {
				shard, _ := x.parts(byKeys, t[0])
				mine = append(mine, heads.of(shard.of(t[0]), 1))
			}
			for _, x := range j.cut.places(from, true) {
				_, all := x.parts(byKeys, t[1])
				theirs = append(theirs, heads.of(all.of(t[1]), 1))
			}
		}
		e.to(to, mine...)
		e.from(from, theirs...)
	}
}

// attendHeads computes some heads of all of the rank's rows. Each call may begin while the one before
// ends: they write rows or heads of their own.
func (j *job) attendHeads(ctx context.Context, w *flashkit.Args, heads headRun, places []place, steps int) error {
	group := j.p.Heads / max(1, j.p.KVHeads)
	for i := range places {
		p, sub := j.rowsOf(&places[i], w)
		p.KVHeads = heads.to - heads.from
		p.Heads = p.KVHeads * group
		sub.K, sub.V = heads.of(sub.K, 1), heads.of(sub.V, 1)
		sub.Q, sub.O, sub.LSE = heads.of(sub.Q, group), heads.of(sub.O, group), heads.of(sub.LSE, group)
		j.dev.Beside()
		if err := cmp.Or(j.compute(ctx, p, &sub, steps), j.math.err); err != nil {
			return err
		}
	}
	return nil
}
