package peer_test

import (
	"testing"

	"github.com/flashkit-go/flashkit/internal/peertest"
)

// On a machine with one GPU, ranks share it. Package cuda runs the same tests with the stand-in.
func TestGPUProblems(t *testing.T) {
	gpus, seed := peertest.OpenAll(t), peertest.Seed(t)
	peertest.Problems(t, peertest.Peers(gpus), []int{1, 2, 3, 4, 5}, seed, 60, false)
}

func TestGPUFaults(t *testing.T) { peertest.Faults(t, peertest.Peers(peertest.OpenAll(t)), 8) }
