package peer_test

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
)

// openAll opens the GPUs of this machine, or skips the test. A machine with one has ranks that
// share it.
func openAll(t *testing.T) (list []*cuda.Backend) {
	devices, err := cuda.Devices()
	if errors.Is(err, flashkit.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	for _, x := range devices {
		gpu, err := cuda.OpenDevice(x.Ordinal)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, gpu.Close()) })
		list = append(list, gpu)
	}
	return list
}

// The stand-in for a GPU has the same tests, in package cuda.
func TestGPUProblems(t *testing.T) {
	gpus, seed := openAll(t), rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("FLASHKIT_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("FLASHKIT_SEED=%d", seed)
	peertest.Problems(t, peertest.Peers(gpus), []int{1, 2, 3, 4, 5}, seed, 60, false)
}

func TestGPUFaults(t *testing.T) { peertest.Faults(t, peertest.Peers(openAll(t))) }
