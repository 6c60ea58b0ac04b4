package conformance

import (
	"context"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// A Poisoner is a backend that keeps workspace from call to call, or from tile to tile. A
// kernel that reads what an earlier one left there may be right by chance: the leftover of
// the same problem often is the value that was wanted.
//
// Poison fills all workspace that no call uses with NaN. The suite calls it before each call
// of a kernel, also while other calls run. Calls that begin later may also fill
// workspace themselves, whenever a tile begins: that finds more. Results keep their bits.
type Poisoner interface {
	Poison()
}

// poisoned returns the kernels with a Run that first poisons the workspace of the kernel's backend.
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

// backend returns the backend of the kernel, nil if it is not among the Backends.
func (o Options) backend(k flashkit.Kernel) flashkit.Backend {
	name, _, _ := strings.Cut(k.Name, "/")
	for _, b := range o.Backends {
		if b.Name() == name {
			return b
		}
	}
	return nil
}
