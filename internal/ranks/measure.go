package ranks

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/ring"
)

// alone computes the whole problem on rank 0 and sets r.One while the other ranks wait. With Check,
// the other ranks then compute the whole problem too, as the reference for their own shards.
func (f *Run) alone(ctx context.Context, g ring.Group, d *dispatch.Dispatcher, p flashkit.Problem, args *flashkit.Args, r *Result) error {
	for i := 0; g.Rank() == 0 && i < 2; i++ { // the first run chooses kernels
		begin := time.Now()
		if err := f.passes(ctx, p, args, d.Forward, d.Backward); err != nil {
			return err
		}
		r.One = time.Since(begin).Seconds()
	}
	if err := g.Gather(ctx, []byte{0}, make([]byte, g.Size())); err != nil || g.Rank() == 0 || !f.Check {
		return err
	}
	return f.passes(ctx, p, args, d.Forward, d.Backward)
}

// measure times the passes and sets the results of all ranks in r. Unless one is nil, its runs
// alternate with these runs. Each run then computes the passes once without timing, unless a run of
// one is long.
func (f *Run) measure(ctx context.Context, g ring.Group, x *ring.Ring, p flashkit.Problem, shard *flashkit.Args, r *Result, one *alone) error {
	var took []time.Duration
	var sent int64
	var wait, compute time.Duration
	add := func(s ring.Stats) {
		sent, wait, compute, r.Memory = sent+s.Sent, wait+s.Wait, compute+s.Compute, max(r.Memory, s.Memory)
	}
	var forwards []time.Duration
	for i := range f.Runs + 1 {
		sent, wait, compute = 0, 0, 0
		forwardTook := time.Duration(0)
		if one != nil && (i > 0 || !one.long) {
			if err := one.run(); err != nil {
				return err
			}
		}
		if one != nil && !one.long {
			if err := f.passes(ctx, p, shard, x.Forward, x.Backward); err != nil {
				return err
			}
		}
		if err := g.Gather(ctx, []byte{0}, make([]byte, g.Size())); err != nil { // all ranks begin together
			return err
		}
		begin := time.Now()
		forward := func(ctx context.Context, p flashkit.Problem, a *flashkit.Args) error {
			err := x.Forward(ctx, p, a)
			forwardTook = time.Since(begin)
			add(x.Stats())
			return err
		}
		backward := func(ctx context.Context, p flashkit.Problem, a *flashkit.Args) error {
			err := x.Backward(ctx, p, a)
			add(x.Stats())
			return err
		}
		if err := f.passes(ctx, p, shard, forward, backward); err != nil {
			return err
		}
		if i > 0 { // the first run allocates buffers and plans
			took, forwards = append(took, time.Since(begin)), append(forwards, forwardTook)
		}
	}
	all, err := gatherAll(ctx, g, numbers{bench.Median(took).Seconds(), float64(sent), wait.Seconds(), bench.Median(forwards).Seconds(), compute.Seconds(), spread(took)})
	for _, a := range all {
		r.Seconds, r.Spread = max(r.Seconds, a[0]), max(r.Spread, a[5])
		r.Sent, r.Wait, r.Compute = append(r.Sent, int64(a[1])), append(r.Wait, a[2]), append(r.Compute, a[4])
		if f.Backward {
			r.Forward = max(r.Forward, a[3])
		}
	}
	if one != nil && err == nil {
		err = one.report(r)
	}
	r.Efficiency = r.One / (float64(r.Ranks) * r.Seconds)
	return err
}

// spread returns the slowest run's time less the fastest run's time, divided by the median.
func spread(took []time.Duration) float64 {
	return (slices.Max(took) - slices.Min(took)).Seconds() / max(bench.Median(took).Seconds(), 1e-9)
}

// numbers are the values that a rank sends to the other ranks.
type numbers [6]float64

// gatherAll returns every rank's numbers.
func gatherAll(ctx context.Context, g ring.Group, mine numbers) ([]numbers, error) {
	const size = 132
	text := make([]byte, size)
	copy(text, fmt.Sprintf("%.12e %.12e %.12e %.12e %.12e %.12e", mine[0], mine[1], mine[2], mine[3], mine[4], mine[5]))
	all := make([]byte, size*g.Size())
	if err := g.Gather(ctx, text, all); err != nil {
		return nil, err
	}
	list := make([]numbers, g.Size())
	for i := range list {
		x := &list[i]
		if _, err := fmt.Sscan(string(all[i*size:][:size]), &x[0], &x[1], &x[2], &x[3], &x[4], &x[5]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// compare compares the rank's rows and keys with one rank's results for the whole problem. It
// returns an error if the largest difference on any rank exceeds the bound of the element type.
func (f *Run) compare(ctx context.Context, g ring.Group, cut *ring.Cut, whole, shard *flashkit.Args, r *Result) error {
	want, err := cut.Shard(g.Rank(), whole)
	if err != nil {
		return err
	}
	worst := 0.0
	for i, x := range [][2]flashkit.Tensor{{shard.O, want.O}, {shard.LSE, want.LSE}, {shard.DQ, want.DQ}, {shard.DK, want.DK}, {shard.DV, want.DV}} {
		if i >= 2 && !f.Backward {
			break
		}
		off, top := 0.0, 0.0
		for at := range x[1].Len() {
			a, b := float64(input.Value(&x[0], at)), float64(input.Value(&x[1], at))
			if a != b && !(math.Abs(a-b) <= off) {
				off = math.Abs(a - b)
			}
			if !math.IsInf(b, 0) {
				top = max(top, math.Abs(b))
			}
		}
		if off != 0 {
			worst = max(worst, off/top)
		}
		if math.IsNaN(off) {
			worst = math.Inf(1)
		}
	}
	all, err := gatherAll(ctx, g, numbers{worst})
	if err != nil {
		return err
	}
	for _, a := range all {
		worst = max(worst, a[0])
	}
	r.Worst = &worst
	bound := map[flashkit.DType]float64{flashkit.Float32: 2e-5, flashkit.Float16: 4e-3, flashkit.BFloat16: 3e-2}[whole.O.DType()]
	if f.Ordered {
		bound = 0
	}
	if !(worst <= bound) {
		return fmt.Errorf("the largest difference from one rank is %.3g of the largest value; must be at most %.3g", worst, bound)
	}
	return nil
}

// predict sets r.Predicted to the time that the model of package ring predicts. The model gets the
// measured rate of one rank.
func (f *Run) predict(p *Problem, r *Result) error {
	link, err := ring.LinkOf(f.Link)
	if err != nil {
		return err
	}
	work := func(pass flashkit.Pass) float64 {
		c := p.Ask(pass)
		c.Args = &flashkit.Args{Seqs: p.Seqs}
		return c.FLOPs()
	}
	flops := work(flashkit.PassForward)
	passes := []flashkit.Pass{flashkit.PassForward}
	if f.Backward {
		flops += work(flashkit.PassBackward)
		passes = append(passes, flashkit.PassBackward)
	}
	for _, pass := range passes {
		x, err := ring.Predict(p.Problem, p.Seqs, r.Ranks, pass, ring.Machine{FLOPs: max(flops, 1) / max(r.One, 1e-9)}, link)
		if err != nil {
			return err
		}
		r.Predicted += x.Total.Seconds()
	}
	return nil
}
