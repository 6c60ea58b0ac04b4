//go:build (amd64 || arm64) && !purego

package simd

import (
	"context"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
)

// vector returns a kernel in assembly.
func vector(name string, missing func() string, refuses func(flashkit.Problem) string, cost func(*flashkit.Call) time.Duration, memory func(*flashkit.Call) float64, run func(context.Context, *flashkit.Call) error, takes flashkit.Feature) flashkit.Kernel {
	pass := flashkit.PassForward
	if strings.HasPrefix(name, "bwd_") {
		pass = flashkit.PassBackward
	}
	return flashkit.Kernel{
		Name: "simd/" + name, Pass: pass, Takes: takes,
		Missing: missing,
		Refuses: func(c *flashkit.Call) string { return refuses(c.Problem) },
		Cost:    cost,
		Needs:   func(c *flashkit.Call) flashkit.Memory { return flashkit.Memory{Host: memory(c)} },
		Run:     run,
	}
}
