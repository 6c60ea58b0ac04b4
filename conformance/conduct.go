package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
)

// The checks of this file are about how a kernel behaves, not what it computes.

// conductProblem is large enough for a kernel to use several workers.
func conductProblem(k flashkit.Kernel) (flashkit.Problem, bool) {
	for _, t := range dtypes {
		p := flashkit.Problem{Batch: 2, Heads: 4, KVHeads: 2, QLen: 150, KVLen: 150, Dim: 64, VDim: 64, DType: t, Band: flashkit.Causal()}
		if k.Fits(p.Ask(k.Pass)) == "" {
			return p, true
		}
	}
	return flashkit.Problem{}, false
}

// prepare returns a function that makes arguments for the kernel, as often as it
// is called.
func prepare(k flashkit.Kernel) (func() *arguments, error) {
	p, ok := conductProblem(k)
	if !ok {
		return nil, &flashkit.UnsupportedError{Kernel: k.Name, Problem: p, Reason: "supports no dtype of the conduct problem"}
	}
	in := Case{Name: "conduct", Problem: p}.Inputs()
	var want result
	if k.Pass == flashkit.PassBackward { // it reads O and LSE
		want.o, want.lse = oracle.Forward(p, in.oracle())
	}
	return func() *arguments { return newArguments(in, bhsd, k.Pass, want) }, nil
}

// concurrentCalls checks that calls at the same time give the bits of a call alone.
func concurrentCalls(ctx context.Context, k flashkit.Kernel) error {
	newArgs, err := prepare(k)
	if err != nil {
		return err
	}
	first := newArgs()
	if err := first.run(ctx, k); err != nil {
		return err
	}
	alone := first.bits(first.outputs)
	errs := make([]error, 4)
	var wait sync.WaitGroup
	for i := range errs {
		a := newArgs()
		wait.Add(1)
		go func() {
			defer wait.Done()
			for range 3 {
				if errs[i] = a.run(ctx, k); errs[i] == nil && !equalBits(alone, a.bits(a.outputs)) {
					errs[i] = fmt.Errorf("a concurrent call gave different bits than a call alone")
				}
				if errs[i] != nil {
					return
				}
			}
		}()
	}
	wait.Wait()
	return errors.Join(errs...)
}

// canceledContext checks that a canceled call says so and that the next works.
func canceledContext(ctx context.Context, k flashkit.Kernel) error {
	newArgs, err := prepare(k)
	if err != nil {
		return err
	}
	a := newArgs()
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if err := a.run(canceled, k); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a canceled context gave %v, want an error that wraps context.Canceled", err)
	}
	return a.run(ctx, k)
}

// invalidArguments checks that what nobody could do is refused with a
// *flashkit.ProblemError and leaves the outputs alone.
func invalidArguments(ctx context.Context, k flashkit.Kernel) error {
	newArgs, err := prepare(k)
	if err != nil {
		return err
	}
	for _, mistake := range mistakes {
		a := newArgs()
		before := a.bits(a.outputs)
		mistake.make(a)
		var wrong *flashkit.ProblemError
		if err := a.run(ctx, k); !errors.As(err, &wrong) {
			return fmt.Errorf("%s gave %v, want a *flashkit.ProblemError", mistake.name, err)
		}
		if !equalBits(before, a.bits(a.outputs)) {
			return fmt.Errorf("%s: refused, but an output was written", mistake.name)
		}
	}
	return nil
}

var mistakes = []struct {
	name string
	make func(a *arguments)
}{
	{"a negative batch", func(a *arguments) { a.p.Batch = -1 }},
	{"no heads", func(a *arguments) { a.p.Heads, a.p.KVHeads = 0, 0 }},
	{"key heads that do not divide the heads", func(a *arguments) { a.p.KVHeads = 3 }},
	{"a length whose products overflow", func(a *arguments) { a.p.QLen = math.MaxInt / 2 }},
	{"a head dim of 0", func(a *arguments) { a.p.Dim = 0 }},
	{"an unknown type", func(a *arguments) { a.p.DType = 77 }},
	{"a NaN scale", func(a *arguments) { a.p.Scale = nan }},
	{"a negative scale", func(a *arguments) { a.p.Scale = -1 }},
	{"a window of -2", func(a *arguments) { a.p.Band = flashkit.Window(-2, 0) }},
	{"keys of another length", func(a *arguments) { a.p.KVLen++ }},
	{"a missing Q", func(a *arguments) { a.args.Q = flashkit.Tensor{} }},
	{"a Q that is too short", func(a *arguments) {
		q := a.inputs[0].tensor
		long := q.WithStrides(q.Strides()[0], q.Strides()[1], q.Strides()[2]+1)
		a.args.Q = long
	}},
	{"a negative stride", func(a *arguments) {
		q := a.inputs[0].tensor.WithStrides(1, 1, -1)
		a.args.Q = q
	}},
	{"an output of stride 0", func(a *arguments) {
		a.args.O = a.args.O.WithStrides(0, 0, 0)
		a.args.DQ = a.args.DQ.WithStrides(0, 0, 0)
	}},
	{"an output that is an input", func(a *arguments) {
		a.args.O = a.args.Q
		a.args.DQ = a.args.Q
	}},
}
