package wasm

import (
	"context"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

func TestMemoryLimit(t *testing.T) {
	p := problem(t, "b1-h2-g2-n40-m1000-d64-f32")
	need := memoryOf(0, p)
	for limit, want := range map[uint64]string{
		0: "one head requires", 1: "one head requires", need - 1: "one head requires", need: "", need + 1: "", 10 * need: "", math.MaxUint64: "",
	} {
		b, err := New(t.Context(), MemoryLimit(limit))
		require.NoError(t, err)
		k := b.Kernels()[0]
		require.Contains(t, k.Fits(p.Ask(k.Pass)), want)
		require.Equal(t, want == "", k.Fits(p.Ask(k.Pass)) == "", "limit %d", limit)
		if err := newCall(p).run(t.Context(), k); want == "" {
			require.NoError(t, err)
			require.LessOrEqual(t, k.Needs(p.Ask(k.Pass)).Host, float64(limit)+1<<10)
			require.LessOrEqual(t, held(b), limit)
		} else {
			require.ErrorContains(t, err, want)
		}
		require.NoError(t, b.Close())
		require.Zero(t, held(b))
		require.Error(t, newCall(p).run(t.Context(), k), "it is closed")
	}
}

// memoryOf returns the bytes of an instance for a problem.
func memoryOf(v int, p flashkit.Problem) uint64 {
	x := newPlan(&variants[v], p.Ask(variants[v].pass))
	return x.memory()
}

func held(b *Backend) uint64 {
	b.box.mu.Lock()
	defer b.box.mu.Unlock()
	return b.box.limit - b.box.left
}

// A call waits while other calls use the memory that it needs, in any order of small
// and large calls. No call fails, and the calls never exceed the limit.
func TestMemoryLimitShared(t *testing.T) {
	large, small := problem(t, "b1-h2-g2-n40-m3000-d64-f32"), problem(t, "b1-h3-g3-n40-m70-d8-f32")
	limit := memoryOf(0, large) + memoryOf(0, small)
	box, err := newSandbox(t.Context(), kernelWasm, compiler, 5, limit)
	require.NoError(t, err)
	b := &Backend{box: box}
	b.jobs.New = func() any { return new(job) }
	var calls sync.WaitGroup
	for i := range 12 {
		calls.Go(func() {
			for range 8 {
				p := small
				if i%3 == 0 {
					p = large
				}
				if err := newCall(p).run(t.Context(), b.Kernels()[i%2*2]); err != nil {
					t.Errorf("%s: %v", p, err)
				}
				if held(b) > limit {
					t.Errorf("%d bytes held, the limit is %d", held(b), limit)
				}
			}
		})
	}
	calls.Wait()
	require.NoError(t, b.Close())
}

// A call that waits for memory obeys its context.
func TestCancelWhileWaitingForMemory(t *testing.T) {
	p := problem(t, "b1-h1-g1-n5-m500-d64-f32")
	n := memoryOf(0, p)
	box, err := newSandbox(t.Context(), kernelWasm, compiler, 3, n)
	require.NoError(t, err)
	b := &Backend{box: box}
	b.jobs.New = func() any { return new(job) }
	x, err := box.acquire(t.Context(), n)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, newCall(p).run(ctx, b.Kernels()[0]), context.DeadlineExceeded)
	box.release(x)
	require.NoError(t, newCall(p).run(t.Context(), b.Kernels()[0]))
	require.NoError(t, b.Close())
}

// A call with empty outputs takes no memory, no instance and no time.
func TestNothingToDo(t *testing.T) {
	const most = math.MaxInt>>13 + 1 // 1 << 50
	b := newBackend(t, compiler)
	empty := func(s [4]int) flashkit.Tensor { return flashkit.F32([]float32{}, s[0], s[1], s[2], s[3]) }
	for _, p := range []flashkit.Problem{
		{Batch: most, Heads: 1, KVHeads: 1, Dim: 1, VDim: 1},
		{Batch: most >> 10, Heads: 1, KVHeads: 1, Dim: 8, VDim: 8},
		{Batch: 1, Heads: most, KVHeads: most, Dim: 1, VDim: 1},
		{Batch: 1, Heads: most, KVHeads: 1, Dim: 1, VDim: 1},
		{Batch: 1 << 20, Heads: 1 << 20, KVHeads: 1 << 20, Dim: 1 << 10, VDim: 3},
		{Batch: 1, Heads: 1, KVHeads: 1, Dim: 1 << 15, VDim: 1 << 15},
		{Batch: 0, Heads: 4, KVHeads: 2, QLen: 1 << 20, KVLen: 1 << 20, Dim: 64, VDim: 64},
	} {
		lse := flashkit.F32([]float32{}, p.Batch, p.Heads, p.QLen, 1)
		q, k, v, o := empty(p.QShape()), empty(p.KShape()), empty(p.VShape()), empty(p.OShape())
		c := &call{p: p, fwd: flashkit.Args{Q: q, K: k, V: v, O: o, LSE: lse}}
		c.bwd = flashkit.Args{Q: q, K: k, V: v, O: o, LSE: lse, DO: o, DQ: q, DK: k, DV: v}
		for _, kernel := range b.Kernels() {
			if within(&kernel, p) != p {
				continue
			}
			require.Zero(t, kernel.Needs(p.Ask(kernel.Pass)).Host, "%s %s", kernel.Name, p)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.NoError(t, c.run(t.Context(), kernel), "%s %s", kernel.Name, p)
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), "%s %s", kernel.Name, p)
		}
	}
	require.Zero(t, held(b))
}

// If the operating system refuses the memory, the call fails and the process continues.
func TestNoMemory(t *testing.T) {
	const name = "FLASHKIT_NO_MEMORY"
	if os.Getenv(name) != "" {
		noMemory(t)
		return
	}
	if runtime.GOOS != "linux" || slow.Race || math.MaxInt == math.MaxInt32 {
		t.Skip("needs a limit of address space that leaves room for Go itself")
	}
	if os.Getenv("FLASHKIT_EMULATOR") != "" {
		t.Skip("a limit of address space leaves no room for the emulator")
	}
	command := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -v 2600000 && exec "$0" -test.run '^TestNoMemory$' -test.v`, os.Args[0])
	command.Env = append(os.Environ(), name+"=1")
	out, err := command.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: TestNoMemory")
	require.NotContains(t, string(out), "fatal error")
}

func noMemory(t *testing.T) {
	b := newBackend(t, compiler)
	for _, keys := range []int{3_000_000, 3_900_000} {
		p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: keys, Dim: 128, VDim: 128}
		row := func() flashkit.Tensor { return flashkit.F32(make([]float32, 128), 1, 1, 1, 128) }
		many := flashkit.F32(make([]float32, 128), 1, 1, keys, 128).WithStrides(0, 0, 0) // stride 0 repeats one row
		f := &flashkit.Args{Q: row(), K: many, V: many, O: row()}
		err := b.Kernels()[0].Compute(t.Context(), p, f)
		require.ErrorContains(t, err, "kernel.wasm: cannot reserve ")
		require.Less(t, strings.Count(err.Error(), "\n"), 1)
		require.Zero(t, held(b))
	}
	p := problem(t, "b1-h2-g1-n70-m90-d16-f32")
	for _, k := range b.Kernels() {
		require.NoError(t, newCall(within(&k, p)).run(t.Context(), k))
	}
}
