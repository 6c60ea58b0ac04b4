package main

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/gputest"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// With tensors on the device, run uses dispatch's choice for them, or the requested kernel, and
// frees everything.
func TestRunOnDevice(t *testing.T) {
	for _, c := range []struct{ choice, problem, want, forward string }{
		{"auto", "b1-h2-g1-n64-m64-d64-bf16-causal", "cuda/bwd_sm90", "cuda/fwd_sm90_short"},
		{"cuda/fwd_sm80", "b1-h2-g1-n64-m64-d64-bf16-causal", "cuda/fwd_sm80", ""},
		{"auto", "b1-h2-g1-n64-m64-d32-f32-carry", "cuda/fwd_f32", ""},
	} {
		g := gputest.New()
		gpu, err := cuda.OpenWith(g.Driver(), 0)
		require.NoError(t, err)
		p, err := flashkit.ParseProblem(c.problem)
		require.NoError(t, err)
		d, err := bench.OnGPU(gpu, c.choice)
		require.NoError(t, err)
		f := runFlags{repeat: 3, pass: passList{flashkit.PassForward}}
		if c.forward != "" {
			f.pass = append(f.pass, flashkit.PassBackward)
		}
		for _, l := range []input.Layout{input.BHSD, input.BSHD} {
			r, w, err := f.compute(t.Context(), d, input.Random(p, 1, l, f.pass.backward()), terminal.NewProgress(&strings.Builder{}))
			require.NoError(t, err)
			require.Equal(t, [4]any{c.want, c.forward, 3, machine.Device}, [4]any{r.Kernel, r.ForwardKernel, r.Calls, r.Memory})
			require.Equal(t, int32(gputest.Plan[0]), int32(math.Float32bits(w.Args.LSE.Float32s()[0])), "the stub's memory came back")
			require.NoError(t, d.Tensors.Close())
		}
		require.NoError(t, d.Close())
		require.Empty(t, g.Live)
	}
}

// On a full GPU, the error names the tensor that did not fit.
func TestRunOnFullDevice(t *testing.T) {
	g := gputest.New()
	driver := g.Driver()
	alloc := driver.MemAlloc
	driver.MemAlloc = func(bytes int) (cuda.Pointer, error) {
		if bytes > 1<<20 {
			return 0, &cuda.Error{Call: "cuMemAlloc_v2", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY"}
		}
		return alloc(bytes)
	}
	gpu, err := cuda.OpenWith(driver, 0)
	require.NoError(t, err)
	d, err := bench.OnGPU(gpu, "auto")
	require.NoError(t, err)
	p, err := flashkit.ParseProblem("b1-h2-g2-n64-m8192-d32-f32")
	require.NoError(t, err)
	_, _, err = new(runFlags).compute(t.Context(), d, input.Random(p, 1, input.BHSD, false), terminal.NewProgress(&strings.Builder{}))
	require.ErrorContains(t, err, "tensors on the device: K of 2.0 MiB: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY")
	require.NoError(t, d.Close())
	require.Empty(t, g.Live)
}

// Without a GPU, or without its kernels, tensors cannot be on a device.
func TestRunOnNoDevice(t *testing.T) {
	for flags, want := range map[string]string{
		"--memory disk":                                "--memory \"disk\": must be host or device",
		"--memory device --backend simd":               "--memory device: only the GPU's kernels take such tensors, not --backend simd",
		"--memory device --backend simd/fwd_generic":   "not --backend simd/fwd_generic",
		"--memory device --problem b1-h1-g1-n1-m1-d1-": "problem",
	} {
		code, _, stderr := flashrun(t, append([]string{"run"}, strings.Fields(flags)...)...)
		require.NotEqual(t, exitOK, code)
		require.Contains(t, stderr, want)
	}
}
