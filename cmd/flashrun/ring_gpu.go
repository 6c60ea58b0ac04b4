package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// openGPUs opens those that --devices names.
func (f *ringFlags) openGPUs() (list []*cuda.Backend, err error) {
	for text := range strings.SplitSeq(f.devices, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return list, fmt.Errorf("--devices %q: must be numbers of GPUs, from 0, with commas", f.devices)
		}
		gpu, err := cuda.OpenDevice(n)
		if err != nil {
			return list, unavailable(err)
		}
		list = append(list, gpu)
	}
	return list, nil
}

// overGPUs is all ranks, whose tensors lie on GPUs.
func (f *ringFlags) overGPUs(ctx context.Context, cmd *cobra.Command, list []ringProblem) (err error) {
	gpus, err := f.openGPUs()
	defer func() {
		for _, gpu := range gpus {
			err = errors.Join(err, gpu.Close())
		}
	}()
	if err != nil {
		return err
	}
	ranks, err := peer.Open(gpus)
	if err != nil {
		return unavailable(err)
	}
	groups := make([]ring.Group, len(ranks))
	for i, r := range ranks {
		groups[i] = r
		defer func() { err = errors.Join(err, r.Close()) }()
	}
	return f.together(cmd, list, groups, func(i int, p *ringProblem) (*ringResult, error) {
		return f.gpu(ctx, ranks[i], p, cmd.ErrOrStderr())
	})
}

// gpu is the work of one GPU.
func (f *ringFlags) gpu(ctx context.Context, g *peer.Rank, p *ringProblem, stderr io.Writer) (r *ringResult, err error) {
	r = f.result(p, g)
	cut, err := ring.NewCut(p.Problem, p.seqs, g.Size(), f.ordered)
	if err != nil {
		return nil, err
	}
	var whole, shard *flashkit.Args // on the host, where their numbers are wanted
	if f.check || p.Features()&^(flashkit.FeatureRagged|flashkit.FeatureShift) != 0 {
		whole = f.input(p)
	}
	if err := f.aloneOnGPU(ctx, g, p, whole, r); err != nil {
		return nil, err
	}
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
	x, err := ring.New(g, g, f.options(g, stderr))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	if err := f.measure(ctx, g, x, p.Problem, mine.Args, r); err != nil {
		return nil, err
	}
	if f.check {
		if err := f.back(mine, p.Problem, shard); err != nil {
			return nil, err
		}
		if err := f.compare(ctx, g, cut, whole, shard, r); err != nil {
			return nil, err
		}
	}
	return r, f.predict(p, r)
}

// aloneOnGPU computes the whole on rank 0's GPU, while the others wait, and then, to compare,
// on these.
func (f *ringFlags) aloneOnGPU(ctx context.Context, g *peer.Rank, p *ringProblem, whole *flashkit.Args, r *ringResult) error {
	if g.Rank() == 0 {
		if err := f.wholeOnGPU(ctx, g, p, whole, f.runs, r); err != nil {
			return err
		}
	}
	if err := g.Gather(ctx, []byte{0}, make([]byte, g.Size())); err != nil || g.Rank() == 0 || !f.check {
		return err
	}
	return f.wholeOnGPU(ctx, g, p, whole, 0, r)
}

func (f *ringFlags) wholeOnGPU(ctx context.Context, g *peer.Rank, p *ringProblem, whole *flashkit.Args, runs int, r *ringResult) (err error) {
	var args *peer.Args
	if whole != nil {
		args, err = g.Upload(whole)
	} else {
		args, err = f.filled(g, p, tokens(p, p.QLen), tokens(p, p.KVLen))
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, args.Free()) }()
	var both, forwards []time.Duration
	pass := func(run func(context.Context, flashkit.Problem, *flashkit.Args) error) passFunc {
		return func(ctx context.Context, p flashkit.Problem, a *flashkit.Args) error {
			return errors.Join(run(ctx, p, a), g.Stream().Sync())
		}
	}
	for i := range runs + 1 {
		begin, forward := time.Now(), time.Duration(0)
		first := pass(g.Forward)
		timed := func(ctx context.Context, p flashkit.Problem, a *flashkit.Args) error {
			err := first(ctx, p, a)
			forward = time.Since(begin)
			return err
		}
		if err := f.passes(ctx, p.Problem, args.Args, timed, pass(g.Backward)); err != nil {
			return err
		}
		if i > 0 { // the first run loads the kernels
			both, forwards = append(both, time.Since(begin)), append(forwards, forward)
		}
	}
	if runs > 0 {
		if r.One = medianSeconds(both); f.backward {
			r.OneForward = medianSeconds(forwards)
		}
	}
	if whole == nil {
		return nil
	}
	return f.back(args, p.Problem, whole)
}

// back copies what the passes wrote to the host.
func (f *ringFlags) back(args *peer.Args, p flashkit.Problem, to *flashkit.Args) error {
	err := args.Download(p, flashkit.PassForward, to)
	if err == nil && f.backward {
		err = args.Download(p, flashkit.PassBackward, to)
	}
	return err
}

// tokens returns the rows of a tensor of the whole.
func tokens(p *ringProblem, n int) int {
	if p.seqs != nil {
		return int(p.seqs.QStarts[p.Batch])
	}
	return n
}

// filled returns arguments on a GPU whose inputs are random numbers: one block of them over and
// over, as to make and copy others would take longer than the passes.
func (f *ringFlags) filled(g *peer.Rank, p *ringProblem, rows, keys int) (*peer.Args, error) {
	shape := p.Problem
	if shape.QLen, shape.KVLen = rows, keys; p.seqs != nil {
		shape.Batch, shape.Ragged = 1, false
	}
	args := new(flashkit.Args)
	f.outputs(shape, args) // memory that nobody touches
	for _, a := range flashkit.Arguments() {
		if reads(&a, &shape, f.backward) {
			n := shapeIn(&a, &shape)
			*a.Of(args) = flashkit.Zeros(a.DType(&shape), n[0], n[1], n[2], n[3])
		}
	}
	args.Seqs = p.seqs
	return g.Random(args, f.seed)
}
