package main

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// A stubGPU stands in for a GPU that computes nothing: every call takes half a
// millisecond by its events. It counts what is not given back.
type stubGPU struct {
	next     uintptr
	live     map[uintptr]int // bytes of device memory, by address; 0 for other handles
	names    []string        // of functions
	launched map[string]int
}

// plan4 is what a kernel's image says of it: threads, shared memory, rows, keys.
var plan4 = [4]int32{128, 1024, 64, 64}

func (g *stubGPU) open(bytes int) (uintptr, error) {
	h := g.next
	g.next += uintptr(bytes) + 1<<12
	g.live[h] = bytes
	return h, nil
}

func (g *stubGPU) shut(h uintptr) error {
	delete(g.live, h)
	return nil
}

// attributes of an H200, by the driver's numbers.
var attributes = map[cuda.Attribute]int{13: 1980000, 16: 132, 36: 3201000, 37: 6016, 38: 60 << 20, 41: 1, 75: 9, 76: 0, 115: 1}

func (g *stubGPU) driver() *cuda.Driver {
	nothing := func() error { return nil }
	return &cuda.Driver{
		Init: nothing, CtxPopCurrent: nothing,
		DriverGetVersion:        func() (int, error) { return 13000, nil },
		DeviceGetCount:          func() (int, error) { return 1, nil },
		DeviceGetName:           func(int) (string, error) { return "a stub", nil },
		DeviceTotalMem:          func(int) (int, error) { return 1 << 30, nil },
		DeviceAttribute:         func(_ int, a cuda.Attribute) (int, error) { return attributes[a], nil },
		DevicePrimaryCtxRetain:  func(int) (cuda.Context, error) { return 1, nil },
		DevicePrimaryCtxRelease: func(int) error { return nil },
		CtxPushCurrent:          func(cuda.Context) error { return nil },
		KeepFreed:               func(int) error { return nil },
		MemAlloc:                func(n int) (cuda.Pointer, error) { h, err := g.open(n); return cuda.Pointer(h), err },
		MemFree:                 func(p cuda.Pointer) error { return g.shut(uintptr(p)) },
		MemAllocAsync: func(n int, _ cuda.StreamHandle) (cuda.Pointer, error) {
			h, err := g.open(n)
			return cuda.Pointer(h), err
		},
		MemFreeAsync:    func(p cuda.Pointer, _ cuda.StreamHandle) error { return g.shut(uintptr(p)) },
		MemcpyHtoDAsync: func(cuda.Pointer, unsafe.Pointer, int, cuda.StreamHandle) error { return nil },
		MemcpyDtoHAsync: func(to unsafe.Pointer, _ cuda.Pointer, _ int, _ cuda.StreamHandle) error {
			*(*[4]int32)(to) = plan4 // nothing else is read back
			return nil
		},
		MemsetD32Async: func(cuda.Pointer, uint32, int, cuda.StreamHandle) error { return nil },
		ModuleLoadData: func([]byte) (cuda.Module, error) { return 1, nil },
		ModuleUnload:   func(cuda.Module) error { return nil },
		ModuleGetFunction: func(_ cuda.Module, name string) (cuda.Function, error) {
			g.names = append(g.names, name)
			return cuda.Function(len(g.names)), nil
		},
		ModuleGetGlobal: func(cuda.Module, string) (cuda.Pointer, int, error) { return 1, int(unsafe.Sizeof(plan4)), nil },
		FuncSetShared:   func(cuda.Function, int) error { return nil },
		FuncBlocksPerSM: func(cuda.Function, int, int) (int, error) { return 2, nil },
		LaunchKernel: func(f cuda.Function, _, _, _ int, _ cuda.StreamHandle, _ unsafe.Pointer) error {
			g.launched[g.names[f-1]]++
			return nil
		},
		TensorMapEncodeTiled: func(*cuda.TensorMap, bool, cuda.Pointer, *[4]uint64, *[3]uint64, *[4]uint32) error {
			return nil
		},
		StreamCreate:      func() (cuda.StreamHandle, error) { h, err := g.open(0); return cuda.StreamHandle(h), err },
		StreamDestroy:     func(s cuda.StreamHandle) error { return g.shut(uintptr(s)) },
		StreamSynchronize: func(cuda.StreamHandle) error { return nil },
		EventCreate:       func() (cuda.EventHandle, error) { h, err := g.open(0); return cuda.EventHandle(h), err },
		EventDestroy:      func(e cuda.EventHandle) error { return g.shut(uintptr(e)) },
		EventRecord:       func(cuda.EventHandle, cuda.StreamHandle) error { return nil },
		EventSynchronize:  func(cuda.EventHandle) error { return nil },
		EventElapsedTime:  func(_, _ cuda.EventHandle) (float32, error) { return .5, nil },
	}
}

// On the device's memory the time is that of its events, kernels are called by
// name, and everything is given back.
func TestBenchOnDevice(t *testing.T) {
	g := &stubGPU{next: math.MaxInt>>17 + 1, live: map[uintptr]int{}, launched: map[string]int{}}
	gpu, err := cuda.OpenWith(g.driver(), 0)
	require.NoError(t, err)
	d := dispatch.New(simd.New(), gpu)
	defer d.Close()
	b := &bench{dispatch: d, kernels: d.Kernels(), gpu: gpu, passes: []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward},
		memories: []string{machine.Device}, settings: settings{Kernels: "chosen", Rounds: 2, TimePerCase: .002, Seed: 1},
		order: rand.New(rand.NewPCG(1, 1)), show: terminal.NewProgress(&strings.Builder{}), results: &results{}}
	host, err := d.With("simd") // so that the stub is not asked for O and LSE on the host
	require.NoError(t, err)
	b.dispatch, b.inputs = host, input.NewMaker(host, 1)
	problems, err := namedProblems([]string{"b1-h2-g1-n64-m64-d64-bf16-causal", "b1-h2-g2-n128-m128-d32-f32"})
	require.NoError(t, err)
	require.NoError(t, b.run(t.Context(), problems))

	require.Empty(t, b.results.Failures)
	require.Len(t, b.results.Results, 4)
	for _, r := range b.results.Results {
		require.Equal(t, machine.Device, r.Memory)
		require.Equal(t, .0005, r.Seconds, "by the events")
		require.Equal(t, 4, r.Calls, "two rounds of a millisecond")
		require.False(t, r.Chosen, "dispatch takes host tensors")
		require.Positive(t, r.Device.Tensors)
	}
	for _, name := range []string{"fwd_sm90_short_bf16_d64", "bwd_sm90_once_bf16_d64", "fwd_f32_d32", "bwd_f32_d32"} {
		require.GreaterOrEqual(t, g.launched[name], 5, "%s: warm-up and four calls, of %v", name, g.launched)
	}
	require.Empty(t, g.live)
}

// With its tensors on the device, run has the kernel that is chosen for them there, or the
// one that is asked for, and gives everything back.
func TestRunOnDevice(t *testing.T) {
	for _, c := range []struct{ choice, problem, want, forward string }{
		{"auto", "b1-h2-g1-n64-m64-d64-bf16-causal", "cuda/bwd_sm90", "cuda/fwd_sm90_short"},
		{"cuda/fwd_sm80", "b1-h2-g1-n64-m64-d64-bf16-causal", "cuda/fwd_sm80", ""},
		{"auto", "b1-h2-g1-n64-m64-d32-f32-carry", "cuda/fwd_f32", ""},
	} {
		g := &stubGPU{next: math.MaxInt>>17 + 1, live: map[uintptr]int{}, launched: map[string]int{}}
		gpu, err := cuda.OpenWith(g.driver(), 0)
		require.NoError(t, err)
		p, err := flashkit.ParseProblem(c.problem)
		require.NoError(t, err)
		d, err := onGPU(gpu, c.choice)
		require.NoError(t, err)
		f := runFlags{repeat: 3, backward: c.forward != ""}
		for _, l := range []input.Layout{input.BHSD, input.BSHD} {
			r, w, err := f.compute(t.Context(), d, input.Random(p, 1, l, f.backward), terminal.NewProgress(&strings.Builder{}))
			require.NoError(t, err)
			require.Equal(t, [4]any{c.want, c.forward, 3, machine.Device}, [4]any{r.Kernel, r.ForwardKernel, r.Calls, r.Memory})
			require.Equal(t, int32(plan4[0]), int32(math.Float32bits(w.Args.LSE.Float32s()[0])), "the stub's memory came back")
			require.NoError(t, d.tensors.Close())
		}
		require.NoError(t, d.close())
		require.Empty(t, g.live)
	}
}

// Where the GPU is full, the error names the tensor that found no room.
func TestRunOnFullDevice(t *testing.T) {
	g := &stubGPU{next: math.MaxInt>>17 + 1, live: map[uintptr]int{}, launched: map[string]int{}}
	driver := g.driver()
	alloc := driver.MemAlloc
	driver.MemAlloc = func(bytes int) (cuda.Pointer, error) {
		if bytes > 1<<20 {
			return 0, &cuda.Error{Call: "cuMemAlloc_v2", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY"}
		}
		return alloc(bytes)
	}
	gpu, err := cuda.OpenWith(driver, 0)
	require.NoError(t, err)
	d, err := onGPU(gpu, "auto")
	require.NoError(t, err)
	p, err := flashkit.ParseProblem("b1-h2-g2-n64-m8192-d32-f32")
	require.NoError(t, err)
	_, _, err = new(runFlags).compute(t.Context(), d, input.Random(p, 1, input.BHSD, false), terminal.NewProgress(&strings.Builder{}))
	require.ErrorContains(t, err, "tensors on the device: K of 2.0 MiB: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY")
	require.NoError(t, d.close())
	require.Empty(t, g.live)
}

// Where there is no GPU, or its kernels are not asked for, tensors cannot lie there.
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

func TestDeviceCallsAreNotTimedAfterCtrlC(t *testing.T) {
	g := &stubGPU{next: math.MaxInt>>17 + 1, live: map[uintptr]int{}, launched: map[string]int{}}
	gpu, err := cuda.OpenWith(g.driver(), 0)
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

func TestDeviceLimits(t *testing.T) {
	limits, err := machine.DeviceLimits(nil, nil)
	require.NoError(t, err)
	require.Empty(t, limits)
	g := &stubGPU{next: math.MaxInt>>17 + 1, live: map[uintptr]int{}, launched: map[string]int{}}
	gpu, err := cuda.OpenWith(g.driver(), 0)
	require.NoError(t, err)
	limits, err = machine.DeviceLimits(gpu, []flashkit.DType{flashkit.Float32, flashkit.BFloat16})
	require.NoError(t, err)
	require.Len(t, limits, 3)
	for i, name := range []string{"f32", "bf16", "copy"} {
		require.Equal(t, name, limits[i].Name)
		require.Equal(t, machine.Device, limits[i].Memory)
		require.Positive(t, max(limits[i].GFLOPS, limits[i].BytesPerSecond))
	}
	require.Positive(t, g.launched["limits_f32"])
	require.Positive(t, g.launched["limits_sm90_bf16"])
	require.Positive(t, g.launched["limits_copy"])
	require.NoError(t, gpu.Close())
	require.Empty(t, g.live)
}
