package conformance

import (
	"context"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// A Poisoner is a backend that keeps workspace between calls or tiles. A kernel that wrongly reads
// old data from workspace may still be right by chance: the previous call of the same problem often
// left the same values there.
//
// Poison writes NaN to all workspace that no call is using. The suite calls Poison before each call
// of a kernel, even while other calls run. After Poison, calls may also write NaN to workspace at
// the start of each tile, which finds more errors. Poison must not change results.
type Poisoner interface {
	Poison() // fill unused workspace with NaN, now and in later calls
}

// poisoned returns copies of the kernels. A copy's Run first calls Poison of the kernel's backend.
func (o Options) poisoned(kernels []flashkit.Kernel) []flashkit.Kernel {
	list := make([]flashkit.Kernel, len(kernels))
	for i, k := range kernels {
		x, ok := o.backend(k).(Poisoner)
		if run := k.Run; ok && run != nil {
			k.Run = func(ctx context.Context, c *flashkit.Call) error {
				x.Poison()
				return run(ctx, c)
			}
		}
		list[i] = k
	}
	return list
}

// backend returns the kernel's backend, or nil if this backend is not in o.Backends.
func (o Options) backend(k flashkit.Kernel) flashkit.Backend {
	name, _, _ := strings.Cut(k.Name, "/")
	for _, b := range o.Backends {
		if b.Name() == name {
			return b
		}
	}
	return nil
}
