package bench

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/gputest"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// On device memory, times are from events, kernels are called by name, and everything is freed.
func TestBenchOnDevice(t *testing.T) {
	g := gputest.New()
	gpu, err := cuda.OpenWith(g.Driver(), 0)
	require.NoError(t, err)
	d := dispatch.New(simd.New(), gpu)
	defer d.Close()
	b := &Run{Dispatch: d, kernels: d.Kernels(), gpu: gpu, Passes: []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward},
		memories: []string{machine.Device}, settings: Settings{Kernels: "chosen", Rounds: 2, TimePerCase: .002, Seed: 1},
		order: rand.New(rand.NewPCG(1, 1)), show: terminal.NewProgress(&strings.Builder{}), Results: &Results{}}
	host, err := d.With("simd") // so that the stub is not asked for O and LSE on the host
	require.NoError(t, err)
	b.Dispatch, b.inputs = host, input.NewMaker(host, 1)
	problems, err := ParseProblems([]string{"b1-h2-g1-n64-m64-d64-bf16-causal", "b1-h2-g2-n128-m128-d32-f32"})
	require.NoError(t, err)
	require.NoError(t, b.run(t.Context(), problems))

	require.Empty(t, b.Results.Failures)
	require.Len(t, b.Results.Results, 4)
	for _, r := range b.Results.Results {
		require.Equal(t, machine.Device, r.Memory)
		require.Equal(t, .0005, r.Seconds, "by the events")
		require.Equal(t, 6, r.Calls, "rounds of a millisecond, until there are five calls")
		require.False(t, r.Chosen, "dispatch takes host tensors")
		require.Positive(t, r.Device.Tensors)
	}
	for _, name := range []string{"fwd_sm90_short_bf16_d64", "bwd_sm90_once_bf16_d64", "fwd_f32_d32", "bwd_f32_d32"} {
		require.GreaterOrEqual(t, g.Launched[name], 5, "%s: warm-up and four calls, of %v", name, g.Launched)
	}
	require.Empty(t, g.Live)
}

func TestDeviceCallsAreNotTimedAfterCtrlC(t *testing.T) {
	g := gputest.New()
	gpu, err := cuda.OpenWith(g.Driver(), 0)
	require.NoError(t, err)
	defer gpu.Close()
	p, err := flashkit.ParseProblem("b1-h2-g2-n64-m64-d32-f32")
	require.NoError(t, err)
	data := &input.Tensors{Problem: p, Args: input.Random(p, 1, input.BHSD, false).WithOutputs(false)}
	defer data.Close()
	all := gpu.Kernels()
	i := slices.IndexFunc(all, func(k flashkit.Kernel) bool { return k.Name == "cuda/fwd_f32" })
	c, err := openDevice(t.Context(), data, gpu, all[i])
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.turn(ended, time.Second), context.Canceled)
}
