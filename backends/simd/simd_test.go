package simd_test

import (
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// A call is a problem with random inputs, ready to run on any kernel.
type call struct {
	p   flashkit.Problem
	fwd flashkit.Args
	bwd flashkit.Args
	out map[flashkit.Pass][]flashkit.Tensor // outputs of each pass
}

// newCall returns the call of a named problem.
func newCall(t testing.TB, name string) *call {
	p, err := flashkit.ParseProblem(name)
	require.NoError(t, err)
	state := uint32(1)
	tensor := func(s [4]int, random bool) flashkit.Tensor {
		x := make([]float32, s[0]*s[1]*s[2]*s[3])
		for i := range x {
			if random {
				state = state*1664525 + 1013904223
				x[i] = float32(state>>8)/(1<<23) - 1
			}
		}
		if p.DType == flashkit.Float32 || s == p.LSEShape() {
			return flashkit.F32(x, s[0], s[1], s[2], s[3])
		}
		y := make([]uint16, len(x))
		if p.DType == flashkit.Float16 {
			for i := range x {
				y[i] = half.ToF16(x[i])
			}
			return flashkit.F16(y, s[0], s[1], s[2], s[3])
		}
		for i := range x {
			y[i] = half.ToBF16(x[i])
		}
		return flashkit.BF16(y, s[0], s[1], s[2], s[3])
	}
	c := &call{p: p}
	c.fwd = flashkit.Args{
		Q: tensor(p.QShape(), true), K: tensor(p.KShape(), true), V: tensor(p.VShape(), true),
		O: tensor(p.OShape(), false), LSE: tensor(p.LSEShape(), false),
	}
	c.bwd = flashkit.Args{
		Q: c.fwd.Q, K: c.fwd.K, V: c.fwd.V, O: c.fwd.O, LSE: c.fwd.LSE, DO: tensor(p.OShape(), true),
		DQ: tensor(p.QShape(), false), DK: tensor(p.KShape(), false), DV: tensor(p.VShape(), false),
	}
	c.out = map[flashkit.Pass][]flashkit.Tensor{
		flashkit.PassForward:  {c.fwd.O, c.fwd.LSE},
		flashkit.PassBackward: {c.bwd.DQ, c.bwd.DK, c.bwd.DV},
	}
	return c
}

// bothTypes lists the types for newCall. Some kernels support only one of these types.
var bothTypes = []string{"f32", "bf16"}

// kernels returns the kernels that support the call on this machine.
func (c *call) kernels() []flashkit.Kernel {
	return slices.DeleteFunc(simd.New().Kernels(), func(k flashkit.Kernel) bool { return k.Fits(c.p.Ask(k.Pass)) != "" })
}

func (c *call) run(ctx context.Context, k flashkit.Kernel) error {
	if k.Pass == flashkit.PassBackward {
		return k.Compute(ctx, c.p, &c.bwd)
	}
	return k.Compute(ctx, c.p, &c.fwd)
}

// bits returns a copy of the outputs of k's pass.
func (c *call) bits(k flashkit.Kernel) [][]float32 {
	var all [][]float32
	for _, x := range c.out[k.Pass] {
		all = append(all, values(x))
	}
	return all
}

func withProcs(t testing.TB, n int) {
	before := runtime.GOMAXPROCS(n)
	time.Sleep(2 * time.Millisecond) // then calls see it
	t.Cleanup(func() {
		runtime.GOMAXPROCS(before)
		time.Sleep(2 * time.Millisecond)
	})
}

// Kernels lists forward kernels first. So O and LSE are set when a backward kernel runs.

func TestSameBitsForAnyNumberOfWorkers(t *testing.T) {
	slow.UnderRace(t)
	for _, name := range []string{
		"b1-h1-g1-n300-m300-d32-f32-causal", "b2-h6-g2-n130-m200-d24-dv40-f32-window50.7",
		"b1-h2-g1-n1500-m700-d64-f32-causal", "b1-h2-g1-n1500-m700-d64-bf16-causal",
		"b1-h1-g1-n70-m2300-d25-f32-causal", "b1-h1-g1-n70-m2300-d40-bf16",
		"b1-h1-g1-n300-m300-d32-bf16-causal", "b2-h6-g2-n130-m200-d25-dv40-bf16-window50.7",
		"b4-h1-g1-n40-m9000-d8-f32", "b1-h1-g1-n40-m17000-d9-f32", "b1-h2-g1-n40-m9000-d8-bf16", // rows of several runs
		"b1-h4-g1-n2300-m300-d8-f32", "b1-h4-g2-n5000-m4900-d17-f32-window300.20",
	} {
		c, numbers := newCall(t, name), []int{1, 2, 7}
		if testing.Short() {
			numbers = []int{1, 2 + rand.IntN(6)}
		}
		for _, k := range c.kernels() {
			var want [][]float32
			for _, procs := range numbers {
				withProcs(t, procs)
				require.NoError(t, c.run(t.Context(), k))
				if want == nil {
					want = c.bits(k)
				}
				require.Equal(t, want, c.bits(k), "%s %s with %d workers", k.Name, name, procs)
			}
		}
	}
}

// If there are few heads, dQ is the sum of several sums.
func TestSumsOfFewHeads(t *testing.T) {
	slow.UnderRace(t)
	for i, name := range []string{
		"b1-h1-g1-n150-m2300-d24-dv40-f32", "b1-h1-g1-n200-m2100-d33-f32-causal",
		"b2-h1-g1-n70-m1100-d64-f32-causal", "b1-h2-g1-n2300-m2200-d8-f32-window900.100",
		"b1-h4-g4-n40-m9000-d24-f32", "b1-h4-g1-n2300-m300-d17-f32-causal",
	} {
		for _, dtype := range someTypes(i) {
			p := problem(t, name, dtype)
			a := newOperands(p, heap, []layout{bhsd, gaps}[i%2])
			a.run(t, kernel(t, "simd/bwd_generic"))
			want := a.outputs(kernel(t, "simd/bwd_generic"))
			for _, k := range simd.New().Kernels() {
				if k.Pass != flashkit.PassBackward || k.Fits(p.Ask(k.Pass)) != "" {
					continue
				}
				a.run(t, k)
				for output, got := range a.outputs(k) {
					sameKind(t, p.DType, k.Name+" "+output, got, want[output], rowLen(p, output))
				}
			}
		}
	}
}

// A call allocates nothing once its workspace is warm and the helpers run.
func TestAllocations(t *testing.T) {
	if slow.Race {
		t.Skip("under the race detector sync.Pool drops objects at random")
	}
	for _, dtype := range bothTypes {
		c := newCall(t, "b1-h4-g2-n200-m200-d32-"+dtype+"-causal")
		for _, k := range c.kernels() {
			run := func() { require.NoError(t, c.run(t.Context(), k)) }
			run()
			require.Zero(t, allocs.PerRun(20, run), "%s with one worker", k.Name)

			// The runtime's own caches, for sleeping goroutines, fill slowly.
			withProcs(t, 4)
			least := uint64(math.MaxUint64)
			for round := 0; least > 0 && round < 100; round++ {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				for range 20 {
					run()
				}
				runtime.ReadMemStats(&after)
				least = min(least, after.Mallocs-before.Mallocs)
			}
			require.Zero(t, least, "%s with 4 workers", k.Name)
		}
	}
}

// planes returns the factor by which a kernel's workspace for tiles may exceed the usual size. AMX
// kernels store a float32 as three planes of bf16.
func planes(kernel string) uint64 {
	if strings.HasSuffix(kernel, "_amxf32") {
		return 3
	}
	return 1
}

// The workspace of a call grows at most linearly with the lengths, never with their product. A
// backward pass needs two floats per row. All other workspace is for the tiles of each worker.
func TestWorkspace(t *testing.T) {
	slow.UnderRace(t)
	for _, dtype := range bothTypes {
		c := newCall(t, "b1-h1-g1-n65536-m65536-d64-"+dtype+"-window64.0")
		for _, k := range c.kernels() {
			limit := uint64(runtime.GOMAXPROCS(0)) << 20
			limit *= planes(k.Name)
			if lanes := k.Pass == flashkit.PassBackward && k.Name != "simd/bwd_generic"; lanes {
				limit += uint64(c.p.QLen * 3 * 4)
				if dtype != "f32" { // dQ is gathered in float32
					limit += uint64(c.p.QLen * c.p.Dim * 4)
				}
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.NoError(t, c.run(t.Context(), k))
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, limit, k.Name)
		}
	}
}

func TestCancelMidway(t *testing.T) {
	for _, dtype := range bothTypes {
		c := newCall(t, "b1-h8-g8-n8192-m8192-d64-"+dtype)
		for _, k := range c.kernels() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
			require.ErrorIs(t, c.run(ctx, k), context.DeadlineExceeded, k.Name)
			cancel()
		}
	}
}

// Repeated calls start no further helpers. Close ends the helpers. A closed backend still gives the
// same bits.
func TestHelpersEndWithTheBackend(t *testing.T) {
	withProcs(t, 4)
	c := newCall(t, "b1-h4-g2-n256-m256-d64-f32-causal")
	before := runtime.NumGoroutine()
	b := simd.New()
	for _, k := range b.Kernels() {
		if k.Fits(c.p.Ask(k.Pass)) != "" {
			continue
		}
		for range 10 {
			require.NoError(t, c.run(t.Context(), k))
		}
		require.LessOrEqual(t, runtime.NumGoroutine(), before+3, k.Name)
	}
	k := b.Kernels()[slices.IndexFunc(b.Kernels(), func(k flashkit.Kernel) bool { return k.Fits(c.p.Ask(k.Pass)) == "" })]
	require.NoError(t, c.run(t.Context(), k))
	want := c.bits(k)
	require.NoError(t, b.Close())
	waitForGoroutines(t, before)
	require.NoError(t, c.run(t.Context(), k))
	require.Equal(t, want, c.bits(k))
	waitForGoroutines(t, before)
}

// If a backend was not closed, its helpers end when the garbage collector frees the backend.
func TestHelpersEndWithoutClose(t *testing.T) {
	withProcs(t, 4)
	c := newCall(t, "b1-h4-g2-n256-m256-d64-f32")
	before := runtime.NumGoroutine()
	require.NoError(t, c.run(t.Context(), c.kernels()[0]))
	waitForGoroutines(t, before)
}

func waitForGoroutines(t *testing.T, limit int) {
	for range 1000 { // a goroutine without work may not have ended yet
		if runtime.NumGoroutine() <= limit {
			return
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%d goroutines are left, were %d", runtime.NumGoroutine(), limit)
}
