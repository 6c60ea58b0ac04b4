package nccl_test

import (
	"errors"
	"testing"

	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/peertest"
	"github.com/flashkit-go/flashkit/ring/nccl"
)

// openAll opens the GPUs of this machine, or skips the test, as it does without NCCL.
func openAll(t *testing.T) []*cuda.Backend {
	if _, err := nccl.Version(nccl.Options{}); errors.Is(err, nccl.ErrNoNCCL) {
		t.Skip(err)
	}
	return peertest.OpenAll(t)
}

// NCCL wants a GPU for each rank. The stand-ins have the same tests, in package cuda.
func TestGPUProblems(t *testing.T) {
	gpus, seed := openAll(t), peertest.Seed(t)
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
