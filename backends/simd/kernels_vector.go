//go:build (amd64 || arm64) && !purego

package simd

import (
	"context"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
)

// vector returns a kernel in assembly, whose cost, memory and run follow from one plan.
func (b *Backend) vector(name string, missing func() string, refuses func(flashkit.Problem) string, takes flashkit.Feature,
	plan func(*plan), times func(*plan) [3]timedPhase, run func(context.Context, *job)) flashkit.Kernel {
	pass := flashkit.PassForward
	if strings.HasPrefix(name, "bwd_") {
		pass = flashkit.PassBackward
	}
	return flashkit.Kernel{
		Name: "simd/" + name, Pass: pass, Takes: takes,
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
