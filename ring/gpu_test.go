package ring_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/ringtest"
	"github.com/flashkit-go/flashkit/ring"
)

// TestGPU runs kernels of GPUs on parts, and in order with one device's bits. Ranks share the
// available GPUs; their tensors are on the host.
func TestGPU(t *testing.T) {
	devices, err := cuda.Devices()
	if errors.Is(err, flashkit.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	var runners []*dispatch.Dispatcher
	for _, x := range devices {
		gpu, err := cuda.OpenDevice(x.Ordinal)
		require.NoError(t, err)
		d := dispatch.New(gpu)
		defer d.Close()
		runners = append(runners, d.Frozen())
	}
	seed := rand.Uint64()
	for i := range uint64(60) {
		c, err := ringtest.New(t.Context(), seed, i, runners[0])
		require.NoError(t, err)
		for _, ranks := range []int{1, 2, 3, 5} {
			for _, ordered := range []bool{false, true} {
				errs := each(t, ranks, func(g ring.Group) error {
					return c.Check(t.Context(), g, runners[g.Rank()%len(runners)], ordered)
				})
				if err := errors.Join(errs...); err != nil {
					t.Errorf("case %d of seed %d, %d ranks: %v", i, seed, ranks, err)
				}
			}
		}
	}
}
