package gorgoniacu_test

import (
	"errors"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/backends/cuda/gorgoniacu"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"
)

// every has a call of each field of a driver, and the call that libcuda must see.
var every = []struct {
	field string
	run   func(d *cuda.Driver) (any, error)
	want  any
	sees  string
}{
	{"Init", func(d *cuda.Driver) (any, error) { return nil, d.Init() }, nil, ""},
	{"DriverGetVersion", func(d *cuda.Driver) (any, error) { return d.DriverGetVersion() }, 13000, "cuDriverGetVersion()"},
	{"DeviceGetCount", func(d *cuda.Driver) (any, error) { return d.DeviceGetCount() }, 2, "cuDeviceGetCount()"},
	{"DeviceGetName", func(d *cuda.Driver) (any, error) { return d.DeviceGetName(1) }, "Fake GPU 1", "cuDeviceGetName(1)"},
	{"DeviceTotalMem", func(d *cuda.Driver) (any, error) { return d.DeviceTotalMem(1) }, 80 << 30, "cuDeviceTotalMem(1)"},
	{"DeviceAttribute", func(d *cuda.Driver) (any, error) { return d.DeviceAttribute(1, 16) }, 132, "cuDeviceGetAttribute(16, 1)"},
	{"DevicePrimaryCtxRetain", func(d *cuda.Driver) (any, error) { return d.DevicePrimaryCtxRetain(1) }, cuda.Context(0xc0), "cuDevicePrimaryCtxRetain(1)"},
	{"DevicePrimaryCtxRelease", func(d *cuda.Driver) (any, error) { return nil, d.DevicePrimaryCtxRelease(1) }, nil, "cuDevicePrimaryCtxRelease(1)"},
	{"CtxPushCurrent", func(d *cuda.Driver) (any, error) { return nil, d.CtxPushCurrent(0xabc) }, nil, "cuCtxPushCurrent(0xabc)"},
	{"CtxPopCurrent", func(d *cuda.Driver) (any, error) { return nil, d.CtxPopCurrent() }, nil, "cuCtxPopCurrent()"},
	{"MemAlloc", func(d *cuda.Driver) (any, error) { return d.MemAlloc(4000) }, cuda.Pointer(0x10000000), "cuMemAlloc(4000)"},
	{"MemFree", func(d *cuda.Driver) (any, error) { return nil, d.MemFree(0x10000100) }, nil, "cuMemFree(0x10000100)"},
	{"MemAllocAsync", func(d *cuda.Driver) (any, error) { return d.MemAllocAsync(4000, 7) }, cuda.Pointer(0x10000000), "cuMemAllocAsync(4000, 0x7)"},
	{"MemFreeAsync", func(d *cuda.Driver) (any, error) { return nil, d.MemFreeAsync(0x10000100, 7) }, nil, "cuMemFreeAsync(0x10000100, 0x7)"},
	{"KeepFreed", func(d *cuda.Driver) (any, error) { return nil, d.KeepFreed(1) }, nil,
		"cuDeviceGetDefaultMemPool(1); cuMemPoolSetAttribute(0x9001, 4, 0xffffffffffffffff)"},
	{"MemHostAlloc", func(d *cuda.Driver) (any, error) {
		p, err := d.MemHostAlloc(4000)
		return p != nil, err
	}, true, "cuMemHostAlloc(4000, 1)"},
	{"MemFreeHost", func(d *cuda.Driver) (any, error) { return nil, d.MemFreeHost(nil) }, nil, "cuMemFreeHost()"},
	{"MemcpyHtoDAsync", func(d *cuda.Driver) (any, error) {
		return nil, d.MemcpyHtoDAsync(0x10000100, unsafe.Pointer(&[3]byte{1, 2, 3}), 3, 7)
	}, nil, "cuMemcpyHtoDAsync(0x10000100, 3, 0x7)"},
	{"MemcpyDtoHAsync", func(d *cuda.Driver) (any, error) {
		to := new([3]byte)
		err := d.MemcpyDtoHAsync(unsafe.Pointer(to), 0x10000100, 3, 7)
		return *to, err
	}, [3]byte{255, 255, 255}, "cuMemcpyDtoHAsync(0x10000100, 3, 0x7)"},
	{"MemsetD32Async", func(d *cuda.Driver) (any, error) { return nil, d.MemsetD32Async(0x10000100, 0xffffffff, 9, 7) }, nil,
		"cuMemsetD32Async(0x10000100, 0xffffffff, 9, 0x7)"},
	{"DeviceCanAccessPeer", func(d *cuda.Driver) (any, error) { return d.DeviceCanAccessPeer(0, 1) }, true, "cuDeviceCanAccessPeer(0, 1)"},
	{"CtxEnablePeerAccess", func(d *cuda.Driver) (any, error) { return nil, d.CtxEnablePeerAccess(0xc1) }, nil, "cuCtxEnablePeerAccess(0xc1, 0)"},
	{"MemcpyPeerAsync", func(d *cuda.Driver) (any, error) {
		return nil, d.MemcpyPeerAsync(0x10000100, 0xc0, 0x10000200, 0xc1, 4000, 7)
	}, nil, "cuMemcpyPeerAsync(0x10000100, 0xc0, 0x10000200, 0xc1, 4000, 0x7)"},
	{"Memcpy3DPeerAsync", func(d *cuda.Driver) (any, error) {
		return nil, d.Memcpy3DPeerAsync(0x10000100, 0xc0, 500, 0x10000200, 0xc1, 600, 400, 3, 7)
	}, nil, "cuMemcpy3DPeerAsync(0x10000100, 0xc0, 500, 0x10000200, 0xc1, 600, 400 3 1, 0x7)"},
	{"ModuleLoadData", func(d *cuda.Driver) (any, error) { return d.ModuleLoadData([]byte{0, 0xff, 0, 9, 0}) }, cuda.Module(0x30d),
		"cuModuleLoadDataEx(00ff0009, 0)"},
	{"ModuleUnload", func(d *cuda.Driver) (any, error) { return nil, d.ModuleUnload(0x30d) }, nil, "cuModuleUnload(0x30d)"},
	{"ModuleGetFunction", func(d *cuda.Driver) (any, error) { return d.ModuleGetFunction(0x30d, "f") }, cuda.Function(0xf0), "cuModuleGetFunction(0x30d, f)"},
	{"ModuleGetGlobal", func(d *cuda.Driver) (any, error) {
		p, n, err := d.ModuleGetGlobal(0x30d, "g")
		return []int{int(p), n}, err
	}, []int{0x10000000, 16}, "cuModuleGetGlobal(0x30d, g)"},
	{"FuncSetShared", func(d *cuda.Driver) (any, error) { return nil, d.FuncSetShared(0xf0, 99<<10) }, nil, "cuFuncSetAttribute(0xf0, 8, 101376)"},
	{"FuncBlocksPerSM", func(d *cuda.Driver) (any, error) { return d.FuncBlocksPerSM(0xf0, 128, 5000) }, 2,
		"cuOccupancyMaxActiveBlocksPerMultiprocessor(0xf0, 128, 5000)"},
	{"LaunchKernel", func(d *cuda.Driver) (any, error) {
		return nil, d.LaunchKernel(0xf0, 1<<31-1, 128, 5000, 7, unsafe.Pointer(new([paramBytes]byte)))
	}, nil, "cuLaunchKernel(0xf0, 2147483647 1 1, 128 1 1, 5000, 0x7, 0)"},
	{"LaunchDependent", func(d *cuda.Driver) (any, error) {
		return nil, d.LaunchDependent(0xf0, 3, 128, 5000, 7, unsafe.Pointer(new([paramBytes]byte)))
	}, nil, "cuLaunchKernelEx(0xf0, 3 1 1, 128 1 1, 5000, 0x7, 0, 6 1)"},
	{"LaunchCluster", func(d *cuda.Driver) (any, error) {
		return nil, d.LaunchCluster(0xf0, 12, 128, 5000, 6, 7, unsafe.Pointer(new([paramBytes]byte)))
	}, nil, "cuLaunchKernelEx(0xf0, 12 1 1, 128 1 1, 5000, 0x7, 0, 4 6)"},
	{"LaunchDependentCluster", func(d *cuda.Driver) (any, error) {
		return nil, d.LaunchDependentCluster(0xf0, 12, 128, 5000, 6, 7, unsafe.Pointer(new([paramBytes]byte)))
	}, nil, "cuLaunchKernelEx(0xf0, 12 1 1, 128 1 1, 5000, 0x7, 0, 4 6, 6 1)"},
	{"TensorMapEncodeTiled", func(d *cuda.Driver) (any, error) {
		m := new(cuda.TensorMap)
		err := d.TensorMapEncodeTiled(m, true, 0x10000100, &[4]uint64{64, 100, 2, 3}, &[3]uint64{128, 12800, 25600}, &[4]uint32{64, 80, 1, 1})
		return m[0], err
	}, byte(0x7a), "cuTensorMapEncodeTiled(9, 4, 0x10000100, 64 100 2 3, 128 12800 25600, 64 80 1 1, 1 1 1 1, 0, 3, 3, 0)"},
	{"StreamCreate", func(d *cuda.Driver) (any, error) { return d.StreamCreate() }, cuda.StreamHandle(0x57), "cuStreamCreate(1)"},
	{"StreamCreatePriority", func(d *cuda.Driver) (any, error) { return d.StreamCreatePriority(-3) }, cuda.StreamHandle(0x57), "cuStreamCreateWithPriority(1, -3)"},
	{"StreamDestroy", func(d *cuda.Driver) (any, error) { return nil, d.StreamDestroy(0x57) }, nil, "cuStreamDestroy(0x57)"},
	{"StreamSynchronize", func(d *cuda.Driver) (any, error) { return nil, d.StreamSynchronize(2) }, nil, "cuStreamSynchronize(0x2)"},
	{"StreamIsCapturing", func(d *cuda.Driver) (any, error) { return d.StreamIsCapturing(0x57) }, true, "cuStreamIsCapturing(0x57)"},
	{"StreamGetID", func(d *cuda.Driver) (any, error) { return d.StreamGetID(0x57) }, uint64(0x1057), "cuStreamGetId(0x57)"},
	{"StreamWaitEvent", func(d *cuda.Driver) (any, error) { return nil, d.StreamWaitEvent(0x57, 0xe1) }, nil, "cuStreamWaitEvent(0x57, 0xe1, 0)"},
	{"EventCreate", func(d *cuda.Driver) (any, error) { return d.EventCreate() }, cuda.EventHandle(0xe1), "cuEventCreate(0)"},
	{"EventDestroy", func(d *cuda.Driver) (any, error) { return nil, d.EventDestroy(0xe1) }, nil, "cuEventDestroy(0xe1)"},
	{"EventRecord", func(d *cuda.Driver) (any, error) { return nil, d.EventRecord(0xe1, 0x57) }, nil, "cuEventRecord(0xe1, 0x57)"},
	{"EventSynchronize", func(d *cuda.Driver) (any, error) { return nil, d.EventSynchronize(0xe1) }, nil, "cuEventSynchronize(0xe1)"},
	{"EventElapsedTime", func(d *cuda.Driver) (any, error) { return d.EventElapsedTime(0xe1, 0xe2) }, float32(1.5), "cuEventElapsedTime(0xe1, 0xe2)"},
}

func TestEveryField(t *testing.T) {
	f, d := newFake(t), gorgoniacu.Driver()
	v := reflect.ValueOf(*d)
	require.Len(t, every, v.NumField())
	for i, c := range every {
		require.Equal(t, v.Type().Field(i).Name, c.field)
		t.Run(c.field, func(t *testing.T) {
			got, err := c.run(d)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			require.Equal(t, c.sees, strings.Join(f.calls(), "; "))
		})
	}
}

func TestEveryError(t *testing.T) {
	f, d := newFake(t), gorgoniacu.Driver()
	for _, c := range every {
		for _, want := range strings.Split(c.sees, "; ") {
			call, _, _ := strings.Cut(want, "(")
			if call == "" {
				continue
			}
			for code, name := range map[int]string{2: "CUDA_ERROR_OUT_OF_MEMORY", 222: "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", 12345: "unknown error"} {
				t.Run(call+"/"+name, func(t *testing.T) {
					f.fail(call, code)
					_, err := c.run(d)
					f.calls()
					require.Equal(t, &cuda.Error{Call: call, Code: code, Name: name}, err)
				})
			}
		}
	}
}

// withPointers is host memory next to Go pointers, which cgo would refuse.
type withPointers struct {
	beside *int
	data   [paramBytes]byte
}

func TestLaunchPassesTheWholeBlock(t *testing.T) {
	f, d := newFake(t), gorgoniacu.Driver()
	block := &withPointers{beside: new(int)}
	for i := range block.data {
		block.data[i] = byte(i * 7)
	}
	require.NoError(t, d.LaunchKernel(0xf0, 1, 32, 0, 0, unsafe.Pointer(&block.data)))
	require.Equal(t, block.data[:], f.params())
}

func TestCopyBesidePointers(t *testing.T) {
	newFake(t)
	d := gorgoniacu.Driver()
	from, to := &withPointers{beside: new(int), data: [paramBytes]byte{1, 2, 3}}, &withPointers{beside: new(int)}
	p, err := d.MemAlloc(paramBytes)
	require.NoError(t, err)
	require.NoError(t, d.MemcpyHtoDAsync(p, unsafe.Pointer(&from.data), paramBytes, 0))
	require.NoError(t, d.MemcpyDtoHAsync(unsafe.Pointer(&to.data), p, paramBytes, 0))
	require.Equal(t, from.data, to.data)
}

// Driver calls of each pass must not allocate.
func TestHotCallsDoNotAllocate(t *testing.T) {
	newFake(t)
	d := gorgoniacu.Driver()
	block, host := unsafe.Pointer(new([paramBytes]byte)), unsafe.Pointer(new([16]byte))
	require.Zero(t, allocs.PerRun(10, func() {
		require.NoError(t, errors.Join(
			d.CtxPushCurrent(0xc0),
			d.MemcpyHtoDAsync(0x10000000, host, 16, 0x57),
			d.LaunchKernel(0xf0, 1, 32, 0, 0x57, block),
			d.MemsetD32Async(0x10000000, 0, 4, 0x57),
			d.MemFreeAsync(0x10000000, 0x57),
			d.EventRecord(0xe1, 0x57),
			d.StreamWaitEvent(0x57, 0xe1),
			d.MemcpyDtoHAsync(host, 0x10000000, 16, 0x57),
			d.StreamSynchronize(0x57),
			d.EventSynchronize(0xe1),
			d.CtxPopCurrent(),
		))
		_, err := d.MemAllocAsync(16, 0x57)
		require.NoError(t, err)
		_, err = d.StreamIsCapturing(0x57)
		require.NoError(t, err)
		_, err = d.StreamGetID(0x57)
		require.NoError(t, err)
	}))
}

func TestHandles(t *testing.T) {
	newFake(t)
	require.Zero(t, gorgoniacu.Stream(cu.NoStream))
	s, err := cu.MakeStream(cu.NonBlocking)
	require.NoError(t, err)
	require.Equal(t, cuda.StreamHandle(0x57), gorgoniacu.Stream(s))
	require.Equal(t, cuda.Pointer(0x10000100), gorgoniacu.Pointer(0x10000100))
}

// A backend in a context of the program uses the context's device and does not touch the primary
// context.
func TestOpen(t *testing.T) {
	f := newFake(t)
	ctx, err := cu.Device(1).MakeContext(cu.SchedAuto)
	require.NoError(t, err)
	b, err := gorgoniacu.Open(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, b.Device().Ordinal)
	require.Equal(t, "Fake GPU 1", b.Device().Name)
	s, err := b.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, b.Close())
	calls := f.calls()
	require.Contains(t, calls, "cuCtxPushCurrent(0xc1)")
	require.NotContains(t, calls, "cuCtxPushCurrent(0xc0)")
	require.NotContains(t, strings.Join(calls, "\n"), "Primary")
	require.Equal(t, count(calls, "cuCtxPushCurrent"), count(calls, "cuCtxPopCurrent"))
}

func TestOpenWithoutContext(t *testing.T) {
	f := newFake(t)
	_, err := gorgoniacu.Open(cu.CUContext{})
	var e *cuda.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, 201, e.Code)
	require.Equal(t, []string{"cuCtxPushCurrent(0x0)"}, f.calls())

	f.fail("cuCtxGetDevice", 201)
	_, err = gorgoniacu.Open(must(cu.Device(1).MakeContext(cu.SchedAuto)))
	require.ErrorAs(t, err, &e)
	require.Equal(t, "cuCtxGetDevice", e.Call)
	require.Equal(t, []string{"cuCtxCreate(0, 1)", "cuCtxPushCurrent(0xc1)", "cuCtxGetDevice()", "cuCtxPopCurrent()"}, f.calls())
}

// Package cuda also loads the fake library: both drivers make the same calls, with the same
// arguments.
func TestSameCallsAsPackageCUDA(t *testing.T) {
	f := newFake(t)
	own, err := cuda.Open()
	require.NoError(t, err)
	use(t, own)
	want := f.calls()
	require.Greater(t, len(want), 30)

	b, err := cuda.OpenWith(gorgoniacu.Driver(), 0)
	require.NoError(t, err)
	use(t, b)
	require.Equal(t, want, f.calls())
}

// use makes a backend make nearly every call.
func use(t *testing.T, b *cuda.Backend) {
	s, err := b.NewStream()
	require.NoError(t, err)
	start, end := must(b.NewEvent()), must(b.NewEvent())
	p := flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 2, QLen: 80, KVLen: 80, Dim: 64, VDim: 64, DType: flashkit.BFloat16}
	n := 2 * 80 * 64
	m := must(b.Alloc(8*2*n + 4*160))
	host := make([]uint16, n)
	require.NoError(t, cuda.Upload(s, m, 0, host))
	at := func(i int) flashkit.Tensor { return m.Tensor(flashkit.BFloat16, i*n, 1, 2, 80, 64) }
	lse := m.Tensor(flashkit.Float32, 8*n/2, 1, 2, 80, 1)
	require.NoError(t, s.Record(start))
	require.NoError(t, b.Forward(t.Context(), s, p, &flashkit.Args{Q: at(0), K: at(1), V: at(2), O: at(3), LSE: lse}))
	require.NoError(t, b.Backward(t.Context(), s, p, &flashkit.Args{Q: at(0), K: at(1), V: at(2), O: at(3), LSE: lse, DO: at(4), DQ: at(5), DK: at(6), DV: at(7)}))
	require.NoError(t, s.Record(end))
	require.NoError(t, s.Wait(end))
	require.NoError(t, end.Sync())
	_, err = end.Since(start)
	require.NoError(t, err)
	require.NoError(t, cuda.Download(s, host, m, 0))
	require.NoError(t, errors.Join(start.Close(), end.Close(), s.Close(), m.Free(), b.Close()))
}

// The README's statement about programs that merely link cu: see make start too.
func TestImportingCUEndsPrograms(t *testing.T) {
	newFake(t)
	if os.Getenv("FAKE_CHILD") != "" {
		return
	}
	run := func(env ...string) (int, string) {
		c := exec.Command(os.Args[0], "-test.run=^TestImportingCUEndsPrograms$")
		c.Env = append(append(os.Environ(), "FAKE_CHILD=1"), env...)
		out, err := c.CombinedOutput()
		var exit *exec.ExitError
		require.True(t, err == nil || errors.As(err, &exit), "%v", err)
		return c.ProcessState.ExitCode(), string(out)
	}
	code, out := run()
	require.Zero(t, code, out)
	code, out = run("FAKE_CUINIT=100")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "NoDevice")
	code, out = run("LD_LIBRARY_PATH=")
	if code == 0 {
		t.Skip("this machine has a driver")
	}
	require.Equal(t, 127, code, out)
	require.Contains(t, out, "libcuda.so.1")
}

func count(calls []string, name string) int {
	n := 0
	for _, c := range calls {
		if strings.HasPrefix(c, name+"(") {
			n++
		}
	}
	return n
}

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}
