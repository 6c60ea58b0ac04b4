package simd

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// Kernels returns the backend's kernels. The list is the same on every platform. If the processor
// lacks the instructions of a kernel, this kernel refuses every call and gives that reason.
func (b *Backend) Kernels() []flashkit.Kernel {
	own, list := append(b.vectorKernels(),
		b.kernel("fwd_generic", nil, refusesNothing, planFwdGeneric, fwdGenericTimes, forward(fwdGenericTile)),
		b.kernel("bwd_generic", nil, refusesNothing, planBwdGeneric, bwdGenericTimes, runBwdGeneric),
	), slices.Clone(abouts[:])
	for i := range list {
		k := &list[i]
		k.DTypes = slices.Clone(k.DTypes)
		if k.Requires != "" {
			k.Code = flashkit.CodeVector
		}
		if at := slices.IndexFunc(own, func(o flashkit.Kernel) bool { return o.Name == k.Name }); at >= 0 {
			o := &own[at]
			k.Missing, k.Refuses, k.Cost, k.Needs, k.Run = o.Missing, o.Refuses, o.Cost, o.Needs, o.Run
		} else {
			leaveOut(k)
		}
		b.pool.Wrap(k)
	}
	return list
}

// kernel returns a kernel with its name and functions only. Cost, Needs and Run first call plan.
// Inlined, it would be copied to programs once per kernel, with all its functions.
//
//go:noinline
func (b *Backend) kernel(name string, missing func() string, refuses func(flashkit.Problem) string,
	plan func(*plan), times func(*plan) [3]timedPhase, run func(context.Context, *job)) flashkit.Kernel {
	return flashkit.Kernel{
		Name:    "simd/" + name,
		Missing: missing,
		Refuses: func(c *flashkit.Call) string { return refuses(c.Problem) },
		Cost: func(c *flashkit.Call) time.Duration {
			pl := planned(c, plan)
			defer pl.forget()
			f := times(pl)
			return cost(c, f[:]...)
		},
		Needs: func(c *flashkit.Call) flashkit.Memory {
			pl := planned(c, plan)
			defer pl.forget()
			return flashkit.Memory{Host: pl.memory()}
		},
		Run: func(ctx context.Context, c *flashkit.Call) error {
			j := b.newJob(c)
			plan(&j.plan)
			run(ctx, j)
			return b.release(ctx, j)
		},
	}
}

func forward(item func(*job, *pool.Arena, int)) func(context.Context, *job) {
	return func(ctx context.Context, j *job) {
		j.args = j.call.Args // of fewer heads, if the plan stacks heads
		j.cutRows()
		if j.p.KeyMass {
			j.beginMass()
			defer j.endMass()
		}
		j.parallel(ctx, item, j.work[0])
	}
}

func refusesNothing(flashkit.Problem) string { return "" }

// leaveOut sets the functions of a kernel that this program cannot run: the kernel is for another
// platform, or a build tag excludes its assembly.
func leaveOut(k *flashkit.Kernel) {
	reason := "requires " + k.Requires
	if strings.Contains(k.Requires, runtime.GOARCH) {
		reason = "requires assembly, which a build tag left out"
	}
	k.Missing = func() string { return reason }
	k.Cost = func(*flashkit.Call) time.Duration { return math.MaxInt64 / 2 }
	k.Run = func(context.Context, *flashkit.Call) error { return errors.New(reason) }
}
