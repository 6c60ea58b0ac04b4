package conformance

import (
	"context"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// A Poisoner is a backend that keeps workspace between calls or tiles. A kernel that reads stale
// workspace may be right by chance, because leftovers of the same problem often equal the wanted
// values.
//
// Poison fills all workspace not in use by a call with NaN. The suite calls it before each call of
// a kernel, even during other calls. Later calls may also poison workspace at the start of each
// tile, which finds more errors. Poison must not change results.
type Poisoner interface {
	Poison() // fills workspace with NaN, from now on
}

// poisoned returns the kernels with a Run that first poisons the backend's workspace.
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

// backend returns the kernel's backend, nil if it is not among o.Backends.
func (o Options) backend(k flashkit.Kernel) flashkit.Backend {
	name, _, _ := strings.Cut(k.Name, "/")
	for _, b := range o.Backends {
		if b.Name() == name {
			return b
		}
	}
	return nil
}
