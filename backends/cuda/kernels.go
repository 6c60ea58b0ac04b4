package cuda

import (
	"context"
	"time"

	"github.com/flashkit-go/flashkit"
)

// Kernels returns the backend's kernels. A kernel takes tensors in device memory, or tensors on the
// host, which it streams through the device. The kernels of a zero Backend, which has no device,
// describe themselves but support no call.
func (b *Backend) Kernels() []flashkit.Kernel {
	list := make([]flashkit.Kernel, 0, numKernels)
	for i := range numKernels {
		s := &families[i]
		k := flashkit.Kernel{
			Name: "cuda/" + s.name, Pass: s.pass, Takes: s.takes,
			Missing: func() string { return s.reason(&b.dev, nil) },
			Device:  true,
			Refuses: func(c *flashkit.Call) string { return s.reason(&b.dev, c) },
			Cost: func(c *flashkit.Call) time.Duration {
				if c.Traits.Device {
					return s.callCost(&b.dev, c)
				}
				return s.hostCallCost(&b.dev, c, cap(b.staging.free))
			},
			Run: func(ctx context.Context, c *flashkit.Call) error {
				if c.Traits.Device {
					return b.runDevice(ctx, familyID(i), c)
				}
				return b.runHost(ctx, familyID(i), c)
			},
		}
		setAbout(&k, familyID(i))
		k.Needs = func(c *flashkit.Call) (m flashkit.Memory) {
			if n, err := b.Workspace(c.Problem, s.pass, k.Name); err == nil {
				m.Tensors, m.Device = c.Bytes(s.pass), float64(n)
			}
			return m
		}
		list = append(list, k)
	}
	return list
}
