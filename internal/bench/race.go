package bench

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// A race times kernels on the same tensors, for one problem and pass after another. Kernels much
// slower than the fastest get few calls or none.
type race struct {
	dispatch *dispatch.Dispatcher // computes inputs of backward passes
	kernels  []flashkit.Kernel    // kernels to time
	slice    time.Duration        // time per kernel and round
	rounds   int
	order    *rand.Rand
}

// raceRounds is the number of rounds. With many short rounds, a disturbance of the machine slows
// all kernels alike.
const raceRounds = 15

type racer struct {
	kernel    flashkit.Kernel
	predicted time.Duration
	times     []time.Duration // of timed calls
	out       bool            // gets no more calls
	err       error           // the error of a failed call
	note      string          // reason for fewer calls
}

// A kernel gets no more calls if it takes more than outTaken times as long as the fastest kernel.
// It gets no calls if its predicted time exceeds cheapTry and is also more than outPredicted times
// the shortest prediction. A kernel predicted to take less than cheapTry is always tried, because
// predictions may be wrong.
const (
	outTaken     = 3
	outPredicted = 20
	cheapTry     = 100 * time.Millisecond
)

// run times the kernels that fit the problem. The result is in order of predicted time.
func (r *race) run(ctx context.Context, data *input.Tensors, s flashkit.Pass) ([]*racer, error) {
	var list []*racer
	for _, k := range r.kernels {
		if k.Pass == s && k.Fits(data.Problem.Ask(k.Pass)) == "" {
			list = append(list, &racer{kernel: k, predicted: k.Cost(data.Problem.Ask(k.Pass))})
		}
	}
	slices.SortStableFunc(list, func(a, b *racer) int { return cmp.Compare(a.predicted, b.predicted) })
	best, tiny := time.Duration(0), input.NewMaker(r.dispatch, 1)
	for i, x := range list {
		if i > 0 && x.predicted > outPredicted*list[0].predicted && x.predicted > cheapTry {
			x.out, x.note = true, fmt.Sprintf("not run: predicted to take %s", terminal.Seconds(x.predicted.Seconds()))
			continue
		}
		if err := x.warmUp(ctx, tiny, data, best); err != nil {
			return list, err
		}
		if len(x.times) > 0 && (best == 0 || slices.Min(x.times) < best) {
			best = slices.Min(x.times)
		}
	}
	runtime.GC() // collect the garbage of warm-up
	return list, r.turns(ctx, data, list, r.rounds)
}

// warmUp calls the kernel on a tiny problem, then up to four times on data. best is the shortest
// time of the earlier kernels, or 0 if there are none. The kernel gets no more calls if it fails,
// or if best is not 0 and the kernel's shortest time exceeds outTaken*best.
func (x *racer) warmUp(ctx context.Context, tiny input.Maker, data *input.Tensors, best time.Duration) error {
	const calls, enough = 3, 20 * time.Millisecond
	if err := tiny.CallTiny(ctx, x.kernel, data.Problem); err != nil {
		return x.fail(ctx, err)
	}
	for total := time.Duration(0); len(x.times) < 1+calls && total < enough; {
		t, err := timed(func() error { return data.Call(ctx, x.kernel) })
		if err != nil {
			return x.fail(ctx, err)
		}
		x.times = append(x.times, t)
		if len(x.times) > 1 || best > 0 && t > cheapTry && t > outTaken*best {
			total += t
		}
	}
	if len(x.times) > 1 {
		x.times = x.times[1:]
	}
	if x.out = best > 0 && slices.Min(x.times) > outTaken*best; x.out {
		x.note = "out after a few calls"
	}
	return nil
}

func (x *racer) fail(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		x.out, x.err, x.note, x.times = true, err, "failed: "+err.Error(), nil
	}
	return ctx.Err()
}

func (x *racer) call(ctx context.Context, data *input.Tensors) (time.Duration, error) {
	t, err := timed(func() error { return data.Call(ctx, x.kernel) })
	if err != nil {
		return 0, x.fail(ctx, err)
	}
	x.times = append(x.times, t)
	return t, nil
}

// turns times the kernels that may get more calls, each for the time r.slice per round.
func (r *race) turns(ctx context.Context, data *input.Tensors, list []*racer, rounds int) error {
	for range rounds {
		for _, i := range r.order.Perm(len(list)) {
			x := list[i]
			for total := time.Duration(0); !x.out && total < r.slice; {
				t, err := x.call(ctx, data)
				if err != nil {
					return err
				}
				total += t
			}
		}
	}
	return nil
}

// seconds returns the median time, or 0 if no call was timed.
func (x *racer) seconds() float64 {
	if len(x.times) == 0 {
		return 0
	}
	return Median(slices.Clone(x.times)).Seconds()
}

// A Heat is a problem, and the passes for which kernels are timed on this problem.
type Heat struct {
	problem flashkit.Problem
	passes  []flashkit.Pass
}

// HeatsOf returns the heats of problems.
func HeatsOf(problems []flashkit.Problem, passes ...flashkit.Pass) (list []Heat) {
	for _, p := range problems {
		list = append(list, Heat{p, passes})
	}
	return list
}

// dtypes are the element types of the heats, and the types that the baseline supports.
var dtypes = [...]flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16}

// heats parses the names of problems. For each problem and each type of dtypes, it returns a heat
// with the given passes.
func heats(names []string, passes ...flashkit.Pass) (list []Heat) {
	for _, name := range names {
		for _, t := range dtypes {
			p, err := flashkit.ParseProblem(name)
			if err != nil {
				panic(err) // names are constants, covered by a test
			}
			p.DType = t
			list = append(list, Heat{p, passes})
		}
	}
	return list
}

// each races every heat that fits into memory and calls done after each pass. It stops when ctx
// ends.
func (r *race) each(ctx context.Context, list []Heat, show *terminal.Progress, done func(*input.Tensors, flashkit.Pass, []*racer) error) error {
	started, inputs := time.Now(), input.NewMaker(r.dispatch, 1)
	for i, h := range list {
		share := float64(i) / float64(len(list))
		left := time.Duration(float64(time.Since(started)) / max(share, .01) * (1 - share))
		show.Part(share, h.problem.String(), left)
		backward := slices.Contains(h.passes, flashkit.PassBackward)
		if input.Bytes(h.problem, backward) > machine.Free()/2 {
			continue
		}
		data, err := inputs.Make(ctx, h.problem, backward)
		if err != nil {
			return err
		}
		for _, s := range h.passes {
			list, err := r.run(ctx, data, s)
			if err == nil {
				err = done(data, s, list)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
