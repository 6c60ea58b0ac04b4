package ranks

import (
	"context"
	"errors"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// OverGPUs computes the problems with a rank on each GPU, with tensors on the GPUs.
func (f *Run) OverGPUs(ctx context.Context, list []Problem, gpus []*cuda.Backend) (err error) {
	ranks, err := f.openRanks(ctx, gpus)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeRanks(ranks)) }()
	groups := make([]ring.Group, len(ranks))
	for i, r := range ranks {
		groups[i] = r
	}
	return f.runRanks(list, groups, func(i int, p *Problem) (*Result, error) {
		return f.rankOnGPU(ctx, ranks[i], p)
	})
}

func (f *Run) rankOnGPU(ctx context.Context, g *peer.Rank, p *Problem) (r *Result, err error) {
	r = f.result(p, g)
	cut, err := ring.NewCut(p.Problem, p.Seqs, g.Size(), f.Ordered)
	if err != nil {
		return nil, err
	}
	var whole, shard *flashkit.Args // tensors on the host, nil if their numbers are not needed
	if f.Check || p.Features()&^(flashkit.FeatureRagged|flashkit.FeatureShift) != 0 {
		whole = f.input(p)
	}
	one, err := f.newAlone(ctx, g, p, whole)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, one.args.Free()) }()
	var mine *peer.Args
	if whole != nil {
		if shard, err = cut.Shard(g.Rank(), whole); err == nil {
			mine, err = g.Upload(shard)
		}
	} else {
		mine, err = f.filled(g, p, cut.QLen(g.Rank()), cut.KVLen(g.Rank()))
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, mine.Free()) }()
	x, err := ring.New(g, g, f.options(g))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	if err := f.measure(ctx, g, x, p.Problem, mine.Args, r, one); err != nil {
		return nil, err
	}
	if f.Check {
		if err := f.download(mine, p.Problem, shard); err != nil {
			return nil, err
		}
		if err := f.compare(ctx, g, cut, whole, shard, r); err != nil {
			return nil, err
		}
	}
	return r, f.predict(p, r)
}

// An alone times the whole problem on one GPU. All ranks do this simultaneously, each for itself.
// These runs alternate with runs of one group of all ranks. A GPU's speed depends on its
// temperature, so all GPUs must be equally busy before each measurement. Only the second of two
// consecutive runs is measured, unless a run is long.
type alone struct {
	f              *Run
	ctx            context.Context
	rank           *peer.Rank
	p              *Problem
	args           *peer.Args
	both, forwards []time.Duration
	long           bool // a run takes at least longRun on some rank
}

// longRun is the time of a run that needs no other run before it.
const longRun = 2 * time.Second

// newAlone returns an alone after a first run, which loads the kernels. If whole is not nil, it
// also stores the results in whole.
func (f *Run) newAlone(ctx context.Context, g *peer.Rank, p *Problem, whole *flashkit.Args) (x *alone, err error) {
	x = &alone{f: f, ctx: ctx, rank: g, p: p}
	if whole != nil {
		x.args, err = g.Upload(whole)
	} else {
		x.args, err = f.filled(g, p, tokens(p, p.QLen), tokens(p, p.KVLen))
	}
	if err != nil {
		return nil, err
	}
	_, took, err := x.once()
	if err == nil {
		err = x.setLong(took)
	}
	if err == nil && whole != nil {
		if f.Ordered {
			err = x.orderedPasses()
		}
		err = errors.Join(err, f.download(x.args, p.Problem, whole))
	}
	if err != nil {
		return nil, errors.Join(err, x.args.Free())
	}
	return x, nil
}

// once computes the passes once. It returns the time of the forward pass and the time of all
// passes.
func (x *alone) once() (forward, all time.Duration, err error) {
	begin := time.Now()
	timed := func(ctx context.Context, p flashkit.Problem, a *flashkit.Args) error {
		err := errors.Join(x.rank.Forward(ctx, p, a), x.rank.Stream().Sync())
		forward = time.Since(begin)
		return err
	}
	backward := func(ctx context.Context, p flashkit.Problem, a *flashkit.Args) error {
		return errors.Join(x.rank.Backward(ctx, p, a), x.rank.Stream().Sync())
	}
	err = x.f.passes(x.ctx, x.p.Problem, x.args.Args, timed, backward)
	return forward, time.Since(begin), err
}

// orderedPasses computes the passes with the kernels of an ordered run, for the comparison bit by
// bit. The timed runs may use other kernels.
func (x *alone) orderedPasses() error {
	by := func(pass flashkit.Pass) passFunc {
		return func(ctx context.Context, p flashkit.Problem, a *flashkit.Args) error {
			k, err := x.rank.Pick(p, pass)
			if err != nil {
				return err
			}
			return errors.Join(k.Compute(ctx, p, a), x.rank.Stream().Sync())
		}
	}
	return x.f.passes(x.ctx, x.p.Problem, x.args.Args, by(flashkit.PassForward), by(flashkit.PassBackward))
}

// setLong sets x.long from the times of all ranks.
func (x *alone) setLong(took time.Duration) error {
	all, err := gatherAll(x.ctx, x.rank, numbers{took.Seconds()})
	for _, a := range all {
		x.long = x.long || a[0] >= longRun.Seconds()
	}
	return err
}

// run calls x.once, twice unless a run is long, and records the times of the last call.
func (x *alone) run() error {
	if !x.long {
		if _, _, err := x.once(); err != nil {
			return err
		}
	}
	forward, all, err := x.once()
	x.forwards, x.both = append(x.forwards, forward), append(x.both, all)
	return err
}

// report sets r.One to the median time of the fastest rank. With Backward it also sets
// r.OneForward, to the shortest median time of a forward pass.
func (x *alone) report(r *Result) error {
	all, err := gatherAll(x.ctx, x.rank, numbers{bench.Median(x.both).Seconds(), bench.Median(x.forwards).Seconds()})
	for i, a := range all {
		if i == 0 || a[0] < r.One {
			r.One = a[0]
		}
		if x.f.Backward && (i == 0 || a[1] < r.OneForward) {
			r.OneForward = a[1]
		}
	}
	return err
}

func (f *Run) download(args *peer.Args, p flashkit.Problem, to *flashkit.Args) error {
	err := args.Download(p, flashkit.PassForward, to)
	if err == nil && f.Backward {
		err = args.Download(p, flashkit.PassBackward, to)
	}
	return err
}

func tokens(p *Problem, n int) int {
	if p.Seqs != nil {
		return int(p.Seqs.QStarts[p.Batch])
	}
	return n
}

// filled returns arguments on a GPU, filled with a repeated block of random numbers. Independent
// random numbers would take longer to make and copy than the passes take.
func (f *Run) filled(g *peer.Rank, p *Problem, rows, keys int) (*peer.Args, error) {
	shape := p.Problem
	if shape.QLen, shape.KVLen = rows, keys; p.Seqs != nil {
		shape.Batch, shape.Ragged = 1, false
	}
	args := new(flashkit.Args)
	f.outputs(shape, args) // untouched memory
	for _, a := range flashkit.Arguments() {
		if input.Reads(&a, &shape, f.Backward) {
			n := input.ShapeIn(&a, &shape)
			*a.Of(args) = flashkit.Zeros(a.DType(&shape), n[0], n[1], n[2], n[3])
		}
	}
	args.Seqs = p.Seqs
	return g.Random(args, f.Seed)
}
