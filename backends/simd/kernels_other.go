//go:build !amd64 || noasm || purego

package simd

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
)

// vectorKernels returns the kernels in assembly, none of which fits: there is no
// assembly for this platform, or a build tag turns it off.
func (b *Backend) vectorKernels() (list []flashkit.Kernel) {
	for i := range abouts {
		if k := abouts[i]; k.Requires != "" {
			list = append(list, without(k))
		}
	}
	return list
}

// without returns k as a kernel that this program cannot run.
func without(k flashkit.Kernel) flashkit.Kernel {
	reason := "requires " + k.Requires
	if runtime.GOARCH == "amd64" {
		reason = "requires assembly, which a build tag left out"
	}
	k.Missing = func() string { return reason }
	k.Cost = func(*flashkit.Call) time.Duration { return math.MaxInt64 / 2 }
	k.Run = func(context.Context, *flashkit.Call) error { return errors.New(reason) }
	if strings.Contains(k.Name, "/bwd_") {
		k.Pass = flashkit.PassBackward
	}
	return k
}
