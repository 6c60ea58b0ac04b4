package cuda_test

import (
	"testing"

	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/peertest"
)

// The transport of package ring/peer on the stand-in for two GPUs: its enqueued work, the location
// of its tensors, and its reaction to faults.
func TestPeersOnFake(t *testing.T) {
	gpus, _ := cuda.OpenFakes(t, 2)
	n, seed := 8, peertest.Seed(t)
	if !testing.Short() {
		n = 60
	}
	peertest.Problems(t, peertest.Peers(gpus), []int{1, 2, 3, 4, 5}, seed, n, true)
}

func TestPeerFaultsOnFake(t *testing.T) {
	gpus, _ := cuda.OpenFakes(t, 2)
	for _, size := range []int{2, 8} {
		peertest.Faults(t, peertest.Peers(gpus), size)
	}
}
