package peer_test

import (
	"testing"

	"github.com/flashkit-go/flashkit/internal/peertest"
)

// A machine with one GPU has ranks that share it. The stand-in for a GPU has the same tests, in package cuda.
func TestGPUProblems(t *testing.T) {
	gpus, seed := peertest.OpenAll(t), peertest.Seed(t)
	peertest.Problems(t, peertest.Peers(gpus), []int{1, 2, 3, 4, 5}, seed, 60, false)
}

func TestGPUFaults(t *testing.T) { peertest.Faults(t, peertest.Peers(peertest.OpenAll(t)), 8) }
