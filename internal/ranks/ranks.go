// Package ranks computes problems over many ranks, which are goroutines, GPUs or processes, and
// measures the gain over one rank.
package ranks

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/terminal"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/mpi"
)

// A Run configures the computation of problems over ranks.
type Run struct {
	Link                     string // name of the link for which the model predicts the time
	NCCL                     bool   // whether NCCL sends the GPUs' tensors
	Runs, Workers            int
	Backward, Ordered, Check bool
	Seed                     uint64
	Progress                 io.Writer // receives the progress of rank 0; may be nil
	Print                    func(*Result) error
}

// A Problem is a problem to compute over ranks. If its sequences are packed, Seqs holds their
// starts.
type Problem struct {
	flashkit.Problem
	Seqs *flashkit.Sequences
}

// OverGoroutines computes the problems with all ranks as goroutines. Rank i computes with
// runners[i].
func (f *Run) OverGoroutines(ctx context.Context, list []Problem, runners []*dispatch.Dispatcher) error {
	groups, err := ring.Local(len(runners))
	if err != nil {
		return err
	}
	return f.runRanks(list, groups, func(i int, p *Problem) (*Result, error) {
		return f.rank(ctx, groups[i], runners[i], p)
	})
}

// OverProcesses computes the problems as one rank of MPI.
func (f *Run) OverProcesses(ctx context.Context, list []Problem, d *dispatch.Dispatcher) error {
	g, err := mpi.Open(ctx)
	if err != nil {
		return err
	}
	for i := range list {
		result, err := f.rank(ctx, g, d, &list[i])
		if err == nil && g.Rank() == 0 {
			err = f.Print(result)
		}
		if err != nil {
			return err // the program ends, and mpiexec ends the other ranks
		}
	}
	return g.Close()
}

// runRanks computes every problem with all ranks, and prints rank 0's result. Each rank runs in a
// goroutine.
func (f *Run) runRanks(list []Problem, groups []ring.Group, rank func(i int, p *Problem) (*Result, error)) error {
	for at := range list {
		results, errs := make([]*Result, len(groups)), make([]error, len(groups))
		var done sync.WaitGroup
		for i, g := range groups {
			done.Go(func() {
				if results[i], errs[i] = rank(i, &list[at]); errs[i] != nil {
					g.Fail(errs[i])
				}
			})
		}
		done.Wait()
		if err := cmp.Or(errs...); err != nil {
			return err
		}
		if err := f.Print(results[0]); err != nil {
			return err
		}
	}
	return nil
}

// A Result is rank 0's result of a problem.
type Result struct {
	Problem    string    `json:"problem"`
	Ranks      int       `json:"ranks"`
	Ordered    bool      `json:"ordered"`
	Backward   bool      `json:"backward"`
	Seconds    float64   `json:"seconds"`                   // median over the runs, of the slowest rank
	Spread     float64   `json:"spread"`                    // range of the runs' times, divided by their median: maximum over the ranks
	One        float64   `json:"one_seconds"`               // time of one rank for the whole problem: of rank 0, or of the fastest GPU
	Efficiency float64   `json:"efficiency"`                // one / (ranks * seconds)
	Forward    float64   `json:"forward_seconds,omitempty"` // the forward pass's part of Seconds, if both passes are computed
	OneForward float64   `json:"one_forward_seconds,omitempty"`
	Sent       []int64   `json:"sent_bytes"`      // bytes that each rank sent
	Wait       []float64 `json:"wait_seconds"`    // each rank's time of waiting for others in the last run
	Compute    []float64 `json:"compute_seconds"` // each rank's time in kernels in the last run
	Memory     int64     `json:"memory_bytes"`    // size of rank 0's buffers
	Predicted  float64   `json:"predicted_seconds"`
	Worst      *float64  `json:"largest_difference,omitempty"` // difference from one rank's results, divided by the largest value; maximum over all ranks
}

func (f *Run) rank(ctx context.Context, g ring.Group, d *dispatch.Dispatcher, p *Problem) (*Result, error) {
	args := f.input(p)
	d = d.Frozen() // no rank changes kernels during the run
	args.Workers = f.Workers
	r := f.result(p, g)
	if err := f.alone(ctx, g, d, p.Problem, args, r); err != nil {
		return nil, err
	}
	x, err := ring.New(g, d, f.options(g))
	if err != nil {
		return nil, err
	}
	defer x.Close()
	cut, err := ring.NewCut(p.Problem, p.Seqs, g.Size(), f.Ordered)
	if err != nil {
		return nil, err
	}
	shard, err := cut.Shard(g.Rank(), args)
	if err != nil {
		return nil, err
	}
	if err := f.measure(ctx, g, x, p.Problem, shard, r, nil); err != nil {
		return nil, err
	}
	if f.Check {
		if err := f.compare(ctx, g, cut, args, shard, r); err != nil {
			return nil, err
		}
	}
	return r, f.predict(p, r)
}

func (f *Run) result(p *Problem, g ring.Group) *Result {
	return &Result{Problem: p.String(), Ranks: g.Size(), Ordered: f.Ordered, Backward: f.Backward}
}

func (f *Run) options(g ring.Group) ring.Options {
	o := ring.Options{Ordered: f.Ordered}
	if g.Rank() == 0 && f.Progress != nil {
		o.Progress = func(x ring.Progress) { fmt.Fprintln(f.Progress, progressLine(x)) }
	}
	return o
}

// input returns random inputs of the whole problem, and tensors for the outputs. Packed sequences
// are rows of one batch entry.
func (f *Run) input(p *Problem) *flashkit.Args {
	shape := p.Problem
	if p.Seqs != nil {
		shape.Batch, shape.Ragged = 1, false
		shape.QLen, shape.KVLen = int(p.Seqs.QStarts[p.Batch]), int(p.Seqs.KVStarts[p.Batch])
	}
	args := &input.Random(shape, f.Seed, input.BHSD, f.Backward).Args
	f.outputs(shape, args)
	args.Seqs = p.Seqs
	return args
}

func (f *Run) outputs(p flashkit.Problem, args *flashkit.Args) {
	pass := flashkit.PassForward
	if f.Backward {
		pass = flashkit.PassBackward
	}
	made := flashkit.NewArgs(p, pass)
	for _, a := range flashkit.Arguments() {
		written := a.Role(&p, flashkit.PassForward) | a.Role(&p, pass)&^flashkit.Input
		if written&flashkit.Output != 0 && a.Of(args).IsZero() && a.Name != "DBias" {
			*a.Of(args) = *a.Of(made)
		}
	}
}

type passFunc = func(context.Context, flashkit.Problem, *flashkit.Args) error

func (f *Run) passes(ctx context.Context, p flashkit.Problem, args *flashkit.Args, forward, backward passFunc) error {
	if err := forward(ctx, p, args); err != nil || !f.Backward {
		return err
	}
	return backward(ctx, p, args)
}

func progressLine(x ring.Progress) string {
	if x.Waiting > 0 {
		return fmt.Sprintf("step %d of %d: waits for rank %d, %.0f s", x.Step, x.Steps, x.From, x.Waiting.Seconds())
	}
	return fmt.Sprintf("step %d of %d", x.Step, x.Steps)
}

// WriteText prints the result. link names the link of the predicted time.
func (r *Result) WriteText(w io.Writer, link string) error {
	fmt.Fprintf(w, "problem      %s\nranks        %d\n", r.Problem, r.Ranks)
	fmt.Fprintf(w, "time         %s, one rank alone %s: efficiency %.2f\n", terminal.Seconds(r.Seconds), terminal.Seconds(r.One), r.Efficiency)
	fmt.Fprintf(w, "predicted    %s by the model, over the link %s\n", terminal.Seconds(r.Predicted), link)
	fmt.Fprintf(w, "sent         %s by the rank that sent most, which waited %s after its kernels\n", terminal.Bytes(float64(slices.Max(r.Sent))), terminal.Seconds(slices.Max(r.Wait)))
	_, err := fmt.Fprintf(w, "buffers      %s on rank 0\n", terminal.Bytes(float64(r.Memory)))
	if r.Worst != nil && err == nil {
		_, err = fmt.Fprintf(w, "check        largest difference from one rank %.3g of the largest value\n", *r.Worst)
	}
	return err
}
