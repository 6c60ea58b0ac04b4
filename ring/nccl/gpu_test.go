package nccl_test

import (
	"errors"
	"math"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/peertest"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/nccl"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// openAll opens the machine's GPUs, at least the given number. Otherwise, or without NCCL, it skips
// the test.
func openAll(t *testing.T, least int) []*cuda.Backend {
	if _, err := nccl.Version(nccl.Options{}); errors.Is(err, nccl.ErrNoNCCL) {
		t.Skip(err)
	}
	gpus := peertest.OpenAll(t)
	if len(gpus) < least {
		t.Skipf("%d GPUs: must be at least %d", len(gpus), least)
	}
	return gpus
}

// NCCL needs one GPU per rank. Package cuda runs the same tests with the stand-ins.
func TestGPUProblems(t *testing.T) {
	gpus, seed := openAll(t, 1), peertest.Seed(t)
	var sizes []int
	for n := range gpus {
		sizes = append(sizes, n+1)
	}
	peertest.Problems(t, peertest.NCCL(t.Context(), gpus), sizes, seed, 60, false)
}

func TestGPUFaults(t *testing.T) {
	gpus := openAll(t, 2)
	peertest.Faults(t, peertest.NCCL(t.Context(), gpus), len(gpus))
}

// Ranks have no other group, as processes of torchrun.
func TestGPULaunched(t *testing.T) {
	if os.Getenv("NCCL_COMM_ID") == "" {
		t.Skip("NCCL_COMM_ID is not set")
	}
	gpus, seed := openAll(t, 2), peertest.Seed(t)
	peertest.Problems(t, peertest.Launched(t.Context(), gpus), []int{len(gpus)}, seed, 10, false)
	peertest.Hangs(t, peertest.Launched(t.Context(), gpus), len(gpus), 1)
}

// A rank gives up with messages under way: they end on all ranks, and a new group works.
func TestGPUAbort(t *testing.T) {
	tr := peertest.NCCL(t.Context(), openAll(t, 2))
	fault := errors.New("the fault of a test")
	for _, after := range []time.Duration{0, time.Millisecond, 3 * time.Millisecond} {
		var given time.Time
		for i, err := range peertest.Each(t, tr, 2, func(r *peer.Rank) error {
			return exchange(t, r, func() {
				if r.Rank() == 1 {
					time.Sleep(after)
					given = time.Now()
					r.Fail(fault)
				}
			})
		}) {
			var e *ring.RankError
			if require.ErrorAs(t, err, &e, "rank %d", i); e.Rank != 1 || !errors.Is(err, fault) {
				t.Errorf("rank %d says %v", i, err)
			}
		}
		t.Logf("gave up after %v, all returned in %v", after, time.Since(given))
		require.Less(t, time.Since(given), 2*time.Second)
		for _, err := range peertest.Each(t, tr, 2, func(r *peer.Rank) error { return exchange(t, r, func() {}) }) {
			require.NoError(t, err)
		}
	}
}

// exchange calls meanwhile during a large message in both directions, after small ones.
func exchange(t *testing.T, r *peer.Rank, meanwhile func()) error {
	const bytes = min(2<<30, math.MaxInt) // milliseconds over the fastest link
	var x [2]*cuda.Buffer
	for i := range x {
		m, err := r.GPU().Alloc(bytes)
		if err != nil {
			return err
		}
		defer func() { assert.NoError(t, m.Free()) }()
		x[i] = m
	}
	begin := func(rows int) error {
		to := func(m *cuda.Buffer) []ring.Message {
			return []ring.Message{{Peer: 1 - r.Rank(), Tensors: []flashkit.Tensor{m.Tensor(flashkit.BFloat16, 0, 1, 8, rows, 128)}}}
		}
		return errors.Join(r.Begin(false), r.Start(t.Context(), to(x[0]), to(x[1])))
	}
	if err := errors.Join(begin(1), r.Wait(t.Context())); err != nil {
		return err
	}
	from := time.Now()
	err := begin(bytes / 2 / 8 / 128)
	if err == nil {
		meanwhile()
	}
	err = errors.Join(err, r.Wait(t.Context()))
	t.Logf("rank %d: %d bytes each way in %v, %v", r.Rank(), bytes, time.Since(from), err)
	return err
}
