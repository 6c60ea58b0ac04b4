package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
)

// The checks of this file test a kernel's behavior, such as concurrent calls. These checks do not
// compare the kernel's results with the oracle.

// conductProblem returns a problem that the kernel supports and that is large enough for several
// workers. It returns false if no such problem exists. The problem has the given features. For a
// backward kernel, conductProblem omits features without a backward pass.
func conductProblem(k flashkit.Kernel, features flashkit.Feature) (flashkit.Problem, bool) {
	if k.Pass == flashkit.PassBackward {
		features &^= flashkit.ForwardFeatures
	}
	for _, t := range dtypes {
		p := flashkit.Problem{Batch: 2, Heads: 4, KVHeads: 2, QLen: 150, KVLen: 150, Dim: 64, VDim: 64, DType: t, Band: flashkit.Causal()}
		if features != 0 {
			p.QLen, p.KVLen = 70, 70 // the oracle and plain kernels are slow
		}
		setParameters(&p, features)
		if features&flashkit.FeatureShift != 0 {
			p.Band = p.Band.Shift(3)
		}
		if t == flashkit.Float32 && features&flashkit.FeatureMixed != 0 {
			p.KVDType, p.Int8Group = flashkit.BFloat16, 0
		}
		if k.Fits(p.Ask(k.Pass)) == "" {
			return p, true
		}
	}
	return flashkit.Problem{}, false
}

// prepare returns a function. Each call of this function returns new arguments for the problem of
// conductProblem.
func prepare(k flashkit.Kernel, features flashkit.Feature) (func() *arguments, error) {
	p, ok := conductProblem(k, features)
	if !ok {
		return nil, &flashkit.UnsupportedError{Kernel: k.Name, Problem: p, Reason: "supports no dtype of the conduct problem"}
	}
	in := Case{Name: "conduct", Problem: p}.Inputs()
	var want result
	if k.Pass == flashkit.PassBackward { // the backward pass reads O and LSE
		want.o, want.lse = oracle.Forward(p, in.oracle())
	}
	return func() *arguments { return newArguments(in, bhsd, k.Pass, want) }, nil
}

// conduct returns the checks of a kernel's behavior. Most checks run twice: without features, and
// with all features of the kernel.
func (o Options) conduct() (list []kernelCheck) {
	for _, c := range []struct {
		name, catches string
		check         func(ctx context.Context, k flashkit.Kernel, features flashkit.Feature) error
	}{
		{"concurrent_calls", "", concurrentCalls},
		{"canceled_context", "", canceledContext},
		{"edges_of_memory", "memory touched before or behind a tensor", edgesOfMemory},
	} {
		list = append(list, kernelCheck{name: c.name, catches: c.catches, run: func(ctx context.Context, k flashkit.Kernel) error { return c.check(ctx, k, 0) }},
			kernelCheck{name: c.name + "_features", catches: c.catches, run: func(ctx context.Context, k flashkit.Kernel) error {
				if k.Takes == 0 {
					return notHeld("it takes no features")
				}
				return c.check(ctx, k, k.Takes)
			}})
	}
	turns := func(ctx context.Context, k flashkit.Kernel) error { return calledInTurns(ctx, k, o.parts) }
	return append(list, kernelCheck{name: "canceled_inside", run: canceledInside, forward: true},
		kernelCheck{name: "called_in_turns", catches: "a plan of another call of the same problem", run: turns, needs: flashkit.FeatureRagged},
		kernelCheck{name: "dropout_of_parts", run: originOfParts, needs: flashkit.FeatureDropout | flashkit.FeatureOrigin})
}

// concurrentCalls checks that concurrent calls give the same bits as a single call.
func concurrentCalls(ctx context.Context, k flashkit.Kernel, features flashkit.Feature) error {
	newArgs, err := prepare(k, features)
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
				for _, out := range a.outputs {
					out.poison() // with Carry, the last run overwrote the result over earlier keys
				}
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

// canceledContext checks that a call with a canceled context returns context.Canceled, and that the
// next call succeeds.
func canceledContext(ctx context.Context, k flashkit.Kernel, features flashkit.Feature) error {
	newArgs, err := prepare(k, features)
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
