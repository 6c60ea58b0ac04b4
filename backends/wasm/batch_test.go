package wasm

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero/api"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// A counted function counts its calls by the host.
type counted struct {
	api.Function
	calls *atomic.Int64
}

func (f counted) CallWithStack(ctx context.Context, stack []uint64) error {
	f.calls.Add(1)
	return f.Function.CallWithStack(ctx, stack)
}

// countEntries returns a counter of the host's later calls of functions of b's only instance.
func countEntries(t *testing.T, b *Backend, need uint64) *atomic.Int64 {
	x, err := b.box.acquire(t.Context(), need)
	require.NoError(t, err)
	entries := new(atomic.Int64)
	for name, f := range x.functions {
		x.functions[name] = counted{f, entries}
	}
	b.box.release(x)
	return entries
}

// For short sequences, the host enters the module once per batch of heads. For long sequences, it
// enters the module once per tile of keys or rows.
func TestEntries(t *testing.T) {
	b := withWorkers(t, compiler, 1, maxMemory)
	entries := countEntries(t, b, 16<<20)
	for _, name := range []string{
		"b32-h12-g12-n16-m16-d32-f32", "b32-h12-g4-n17-m33-d64-f32-causal", "b32-h12-g12-n64-m64-d32-bf16", "b40-h1-g1-n5-m5-d8-f32-alibi-mask-sink-dropout0.25",
	} {
		p := problem(t, name)
		c := newCall(p)
		for v, k := range b.Kernels()[:2] {
			x := newPlan(&variants[v], p.Ask(k.Pass))
			require.Greater(t, x.batch, 1, "%s %s", k.Name, name)
			entries.Store(0)
			require.NoError(t, c.run(t.Context(), k))
			require.EqualValues(t, ceil(x.heads(), x.batch), entries.Load(), "%s %s", k.Name, name)
		}
	}
	entries.Store(0)
	require.NoError(t, newCall(problem(t, "b1-h2-g2-n200-m200-d64-f32")).run(t.Context(), b.Kernels()[0]))
	require.EqualValues(t, 2*(2+2), entries.Load(), "two blocks of keys and two tiles of rows of two heads")
}

// The size of a batch keeps module calls short and the batch's stage in the cache, and leaves items
// for other workers. If a batch exceeds the memory limit, the call runs without batches.
func TestBatchSize(t *testing.T) {
	for name, want := range map[string]int{
		"b32-h12-g12-n16-m16-d32-f32": 24, "b1-h1-g1-n5-m5-d8-f32": 0, "b1-h16-g16-n5-m5-d8-f32": 0, "b1-h17-g17-n5-m5-d8-f32": 2,
		"b32-h12-g12-n129-m16-d32-f32": 0, "b32-h12-g12-n16-m129-d32-f32": 0, "b32-h12-g12-n128-m128-d128-f32": 0, "b32-h12-g12-n0-m16-d32-f32": 0,
	} {
		x := newPlan(&variants[0], problem(t, name).Ask(flashkit.PassForward))
		require.Equal(t, want, x.batch, name)
	}
	p := problem(t, "b32-h12-g12-n64-m64-d32-f32")
	x := newPlan(&variants[0], p.Ask(flashkit.PassForward))
	require.Positive(t, x.batch)
	one := x
	one.batch = 0
	require.Less(t, one.memory(), x.memory())
	b := withWorkers(t, compiler, 1, one.memory())
	k := b.Kernels()[0]
	require.Empty(t, k.Fits(p.Ask(k.Pass)))
	require.NoError(t, newCall(p).run(t.Context(), k))
	require.LessOrEqual(t, held(b), one.memory())
}

// Results have the same bits without batches and with batches of any size, for random features and
// layouts.
func TestBatchesSameBits(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	b := withWorkers(t, compiler, 2, maxMemory)
	trials, batched := 150, 0
	if testing.Short() {
		trials = 40
	}
	for n := range trials {
		for v := range variants[:2] {
			back := variants[v].pass == flashkit.PassBackward
			p := randomProblem(random, variants[v].takes&^flashkit.Feature(random.IntN(int(flashkit.AllFeatures)+1)))
			p.Batch = 1 + random.IntN(9)
			p.QLen, p.KVLen = 1+random.IntN(tile), 1+random.IntN(tile)
			r := newTrial(seed+uint64(n), p, layout{n%2 == 0, true, n%3 == 0, true}, back)
			r.prepare(variants[v].pass)
			r.sameBits(t, 5, func(size int) {
				c := new(flashkit.Call)
				require.NoError(t, c.Set(p, variants[v].pass, &r.a))
				j := b.newJob(&variants[v], c)
				if j.batch = 0; !j.bias.wanted {
					j.batch = size
					batched += size
				}
				require.NoError(t, b.do(t.Context(), j))
			}, func(size int) string {
				return fmt.Sprintf("seed %d, trial %d, %s %s in batches of %d", seed, n, p, variants[v].stem, size)
			})
		}
	}
	require.Positive(t, batched)
}

// An invalid call in a list ends the list. The list then returns the code of this call.
func TestBadLists(t *testing.T) {
	b := newBackend(t, compiler)
	x, err := b.box.acquire(t.Context(), 16<<20)
	require.NoError(t, err)
	defer b.box.release(x)
	p := problem(t, "b32-h1-g1-n16-m16-d8-f32")
	n, s := newPlan(&variants[0], p.Ask(flashkit.PassForward)), p.Ask(flashkit.PassForward).Seq(0)
	all, stage := n.placeBatch(x.base, n.batch)
	w := stage.of(&n, all, 0, 0, 0)
	good := [listWords]int{1, int(w.block), 0, 16, 0, 16, 3, 0}
	run := func(count int, last [listWords]int) error {
		x.writeBlock(&n, &w, &s, 0, 16)
		x.listed, x.failed = 0, false
		x.list(&stage, 0, w.block, 0, 0, 16, 0)
		x.list(&stage, 1, w.block, 0, 16, 16, 3)
		to := x.floats(stage.list+4*listWords, listWords)
		for i, word := range last {
			to[i] = math.Float32frombits(uint32(word))
		}
		return x.call(t.Context(), listEntry, int(stage.list), count)
	}
	require.NoError(t, run(2, good))
	for i, values := range map[int][]int{
		0: {7, -1, 1 << 30}, 1: {0, 8, -16, int(w.end), len(x.memory) - 16}, 2: {17, -1}, 3: {129, -1, 1 << 30}, 4: {1, 128, -1}, 5: {17, 129, -1},
	} {
		for _, value := range values {
			bad := good
			bad[i] = value
			require.ErrorContains(t, run(2, bad), "bad ", "word %d = %d", i, value)
			require.NoError(t, run(1, bad), "it is not reached")
		}
	}
	for _, count := range []int{-1, 1<<16 + 1} {
		require.ErrorContains(t, x.call(t.Context(), listEntry, int(stage.list), count), "bad block", "%d calls", count)
	}
	for _, at := range []int{0, 8, int(stage.list) + 4, -16, len(x.memory) - 32} {
		require.ErrorContains(t, x.call(t.Context(), listEntry, at, 2), "bad block", "a list at %d", at)
	}
	x.failed = false
}
