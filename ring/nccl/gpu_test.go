package nccl_test

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/peertest"
	"github.com/flashkit-go/flashkit/ring/nccl"
)

// openAll opens the GPUs of this machine, or skips the test, as it does without NCCL.
func openAll(t *testing.T) (list []*cuda.Backend) {
	devices, err := cuda.Devices()
	if errors.Is(err, flashkit.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	if _, err := nccl.Version(nccl.Options{}); errors.Is(err, nccl.ErrNoNCCL) {
		t.Skip(err)
	}
	for _, x := range devices {
		gpu, err := cuda.OpenDevice(x.Ordinal)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, gpu.Close()) })
		list = append(list, gpu)
	}
	return list
}

// NCCL wants a GPU for each rank. The stand-ins have the same tests, in package cuda.
func TestGPUProblems(t *testing.T) {
	gpus, seed := openAll(t), rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("FLASHKIT_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("FLASHKIT_SEED=%d", seed)
	var sizes []int
	for n := range gpus {
		sizes = append(sizes, n+1)
	}
	peertest.Problems(t, peertest.NCCL(gpus, nccl.Options{}), sizes, seed, 60, false)
}

func TestGPUFaults(t *testing.T) {
	gpus := openAll(t)
	if len(gpus) < 8 {
		t.Skipf("%d GPUs: the faults are those of 3 to 8 ranks", len(gpus))
	}
	peertest.Faults(t, peertest.NCCL(gpus, nccl.Options{}))
}
