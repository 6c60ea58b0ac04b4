package cuda

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/internal/half"
)

// openFake opens a backend on a fake driver and sees at the end that nothing
// leaks.
func openFake(t *testing.T) (*Backend, *fakeDriver) {
	f := newFake()
	b, err := OpenWith(&f.Driver, 0)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.Close())
		require.Empty(t, f.leaks())
	})
	return b, f
}

// The whole suite, with the fake's arithmetic: packing, chunks, launches,
// workspace and errors are the real ones.
func TestConformanceOnFake(t *testing.T) {
	b, _ := openFake(t)
	b.staging.chunk, b.staging.whole = 3000, 3000 // several chunks for most cases
	b.eager = true
	conformance.Run(t, b)
}

func TestOpenUnavailable(t *testing.T) {
	for reason, spoil := range map[string]func(*fakeDriver){
		"no device: cuInit: CUDA_ERROR_FAKE (100)":                              func(f *fakeDriver) { f.failures["cuInit"] = f.fail("cuInit", codeNoDevice) },
		"no device: the driver sees none":                                       func(f *fakeDriver) { f.devices = 0 },
		"driver too old: it supports CUDA 12.8; the kernels require 13.0":       func(f *fakeDriver) { f.version = 12080 },
		"architecture below sm_70: Fake GPU has compute capability 6.1":         func(f *fakeDriver) { f.attributes[attrMajor], f.attributes[attrMinor] = 6, 1 },
		"Fake GPU has no memory pools or no unified addresses":                  func(f *fakeDriver) { f.attributes[attrMemoryPools] = 0 },
		"no context on Fake GPU: cuDevicePrimaryCtxRetain: CUDA_ERROR_FAKE (2)": func(f *fakeDriver) { f.failures["cuDevicePrimaryCtxRetain"] = f.fail("cuDevicePrimaryCtxRetain", 2) },
		"cuMemPoolSetAttribute: CUDA_ERROR_FAKE (801)":                          func(f *fakeDriver) { f.failures["cuMemPoolSetAttribute"] = f.fail("cuMemPoolSetAttribute", 801) },
	} {
		f := newFake()
		spoil(f)
		_, err := OpenWith(&f.Driver, 0)
		require.ErrorIs(t, err, flashkit.ErrUnavailable)
		require.EqualError(t, err, "cuda: unavailable on this machine: "+reason)
		require.Empty(t, f.leaks(), reason)
	}
}

// Nothing to tell where there is no GPU; all else that keeps one from being opened is.
func TestNoDevice(t *testing.T) {
	f := newFake()
	f.failures["cuInit"] = f.fail("cuInit", codeNoDevice)
	_, err := OpenWith(&f.Driver, 0)
	require.ErrorIs(t, err, ErrNoDevice)
	f = newFake()
	f.devices = 0
	_, err = devicesOf(&f.Driver)
	require.ErrorIs(t, err, ErrNoDevice)
	f = newFake()
	_, err = OpenWith(&f.Driver, 1)
	require.EqualError(t, err, "cuda: unavailable on this machine: no device: number 1 of 1")
	require.NotErrorIs(t, err, ErrNoDevice)
	require.ErrorIs(t, lacking{errors.New("no driver library")}, ErrNoDevice)
	t.Setenv(DeviceVariable, "one")
	_, err = Open()
	require.EqualError(t, err, `cuda: unavailable on this machine: FLASHKIT_DEVICE = "one": must be the number of a GPU, from 0`)
}

func TestDevices(t *testing.T) {
	f := newFake()
	f.devices, f.attributes[attrMajor] = 3, 6
	list, err := devicesOf(&f.Driver)
	require.NoError(t, err)
	require.Len(t, list, 3)
	for i, d := range list {
		require.Equal(t, i, d.Ordinal)
		require.Equal(t, "Fake GPU", d.Name)
		require.Equal(t, 80<<30, d.Memory)
		require.Equal(t, 13000, d.Driver)
		require.Contains(t, d.Reason, "sm_70")
	}
	require.Empty(t, f.leaks())
}

// An older GPU keeps the backend and says in Fits what its kernels lack.
func TestFitsOlderGPU(t *testing.T) {
	f := newFake()
	f.attributes[attrMajor], f.attributes[attrMinor] = 7, 5
	b, err := OpenWith(&f.Driver, 0)
	require.NoError(t, err)
	defer b.Close()
	for _, k := range b.Kernels() {
		if k.Name == "cuda/fwd_sm80" {
			require.Equal(t, "requires compute capability 8.0; Fake GPU has 7.5", k.Fits(problem(t, "b1-h1-g1-n4-m4-d8-bf16").Ask(k.Pass)))
		}
	}
}

func TestFits(t *testing.T) {
	b, _ := openFake(t)
	for _, c := range []struct{ kernel, problem, reason string }{
		{"cuda/fwd_sm80", "b1-h1-g1-n4-m4-d8-f32", "supports [f16 bf16], not f32"},
		{"cuda/fwd_sm80", "b1-h1-g1-n4-m4-d257-bf16", "supports head dims up to 256, not 257"},
		{"cuda/fwd_sm80", "b1-h1-g1-n4-m4-d8-dv300-bf16", "supports head dims up to 256, not 300"},
		{"cuda/decode_sm80", "b1-h8-g1-n9-m4-d8-bf16", "supports at most 64 query rows per KV head, not 72"},
		{"cuda/bwd_f32", "b1-h1-g1-n4-m4-d512-f32", ""},
		{"cuda/fwd_sm80", "b1-h1-g1-n1-m2000000000-d8-bf16", "supports sequence lengths up to 1073741824, not 2000000000"},
		{"cuda/fwd_sm80", "b4000-h4000-g4000-n4096-m1-d8-bf16", "supports up to 2147483647 thread blocks, not 4112000000"},
	} {
		for _, k := range b.Kernels() {
			if k.Name == c.kernel {
				require.Equal(t, c.reason, k.Fits(problem(t, c.problem).Ask(k.Pass)), c.problem)
			}
		}
	}
}

func problem(t testing.TB, name string) flashkit.Problem {
	p, err := flashkit.ParseProblem(name)
	require.NoError(t, err)
	return p
}

// A deviceCall is a problem's tensors in the device's memory.
type deviceCall struct {
	b       *Backend
	p       flashkit.Problem
	s       *Stream
	buffers []*Buffer
	args    flashkit.Args

	fwdOptions, bwdOptions Options
}

func newDeviceCall(t testing.TB, b *Backend, name string) *deviceCall {
	c := &deviceCall{b: b, p: problem(t, name)}
	var err error
	c.s, err = b.NewStream()
	require.NoError(t, err)
	tensor := func(dtype flashkit.DType, s [4]int) flashkit.Tensor {
		n := s[0] * s[1] * s[2] * s[3]
		m, err := b.Alloc(n * dtype.Size())
		require.NoError(t, err)
		c.buffers = append(c.buffers, m)
		require.NoError(t, fillRandom(c.s, m, dtype, n))
		return m.Tensor(dtype, 0, s[0], s[1], s[2], s[3])
	}
	for _, pass := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
		shapes := flashkit.NewArgs(c.p, pass)
		for _, a := range allArguments {
			if x := a.Of(shapes); a.Name != "DLSE" && !x.IsZero() && a.Of(&c.args).IsZero() {
				*a.Of(&c.args) = tensor(x.DType(), x.Shape())
			}
		}
		if shapes.Seqs != nil {
			c.args.Seqs = shapes.Seqs
		}
	}
	return c
}

// buffer returns the memory of a tensor.
func buffer(t flashkit.Tensor) *Buffer { return t.Owner().(*Buffer) }

// fillRandom makes n elements of the buffer normally distributed. Long ones repeat
// a block of a million.
func fillRandom(s *Stream, m *Buffer, dtype flashkit.DType, n int) error {
	const block = 1 << 20
	if dtype == flashkit.Bool {
		mask := make([]bool, min(n, block))
		for i := range mask {
			mask[i] = rand.IntN(4) > 0
		}
		for from := 0; from < n; from += block {
			if err := Upload(s, m, from, mask[:min(block, n-from)]); err != nil {
				return err
			}
		}
		return nil
	}
	wide, narrow := make([]float32, min(n, block)), make([]uint16, min(n, block))
	for i := range wide {
		if wide[i] = float32(rand.NormFloat64()); dtype == flashkit.Float16 {
			narrow[i] = half.ToF16(wide[i])
		} else {
			narrow[i] = half.ToBF16(wide[i])
		}
	}
	for from := 0; from < n; from += block {
		var err error
		if k := min(block, n-from); dtype == flashkit.Float32 {
			err = Upload(s, m, 4*from, wide[:k])
		} else {
			err = Upload(s, m, 2*from, narrow[:k])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *deviceCall) forward() error  { return c.launch(flashkit.PassForward, c.fwdOptions) }
func (c *deviceCall) backward() error { return c.launch(flashkit.PassBackward, c.bwdOptions) }

func (c *deviceCall) launch(pass flashkit.Pass, o Options) error {
	return c.b.Launch(context.Background(), c.s, c.p, pass, &c.args, o)
}

func (c *deviceCall) close(t testing.TB) {
	for _, m := range c.buffers {
		require.NoError(t, m.Free())
	}
	require.NoError(t, c.s.Close())
}

// Both ways in compute the same.
func TestDeviceMemory(t *testing.T) {
	b, _ := openFake(t)
	c := newDeviceCall(t, b, "b2-h4-g2-n33-m70-d24-dv40-f32-causal")
	defer c.close(t)
	require.NoError(t, c.forward())
	require.NoError(t, c.backward())
	p := c.p
	host := func(x flashkit.Tensor) flashkit.Tensor {
		s := x.Shape()
		h := make([]float32, s[0]*s[1]*s[2]*s[3])
		require.NoError(t, Download(c.s, h, buffer(x), 0))
		return flashkit.F32(h, s[0], s[1], s[2], s[3])
	}
	empty := func(s [4]int) flashkit.Tensor {
		return flashkit.F32(make([]float32, s[0]*s[1]*s[2]*s[3]), s[0], s[1], s[2], s[3])
	}
	fwd := &flashkit.Args{Q: host(c.args.Q), K: host(c.args.K), V: host(c.args.V), O: empty(p.OShape()), LSE: empty(p.LSEShape())}
	bwd := &flashkit.Args{Q: fwd.Q, K: fwd.K, V: fwd.V, O: fwd.O, LSE: fwd.LSE, DO: host(c.args.DO),
		DQ: empty(p.QShape()), DK: empty(p.KShape()), DV: empty(p.VShape())}
	for _, k := range b.Kernels() {
		switch k.Name {
		case "cuda/fwd_f32":
			require.NoError(t, k.Compute(context.Background(), p, fwd))
		case "cuda/bwd_f32":
			require.NoError(t, k.Compute(context.Background(), p, bwd))
		}
	}
	for _, pair := range [][2]flashkit.Tensor{{host(c.args.O), fwd.O}, {host(c.args.LSE), fwd.LSE}, {host(c.args.DQ), bwd.DQ}, {host(c.args.DK), bwd.DK}, {host(c.args.DV), bwd.DV}} {
		require.Equal(t, pair[1].Float32s(), pair[0].Float32s())
	}
}

// A kernel takes tensors on the device too, and waits until they are there; no other
// backend's kernel does, nor tensors of both kinds.
func TestKernelsTakeDeviceMemory(t *testing.T) {
	b, _ := openFake(t)
	c := newDeviceCall(t, b, "b2-h4-g2-n33-m70-d24-dv40-f32-causal")
	defer c.close(t)
	download := func(x flashkit.Tensor) []float32 {
		h := make([]float32, x.Len())
		require.NoError(t, Download(c.s, h, buffer(x), 0))
		return h
	}
	require.NoError(t, c.forward())
	require.NoError(t, c.backward())
	want := [][]float32{download(c.args.O), download(c.args.DQ), download(c.args.DK)}
	for _, k := range b.Kernels() {
		if strings.HasSuffix(k.Name, "_f32") {
			require.NoError(t, b.drv.MemsetD32Async(buffer(c.args.DQ).address, 0xffffffff, c.args.DQ.Len(), c.s.handle))
			require.NoError(t, k.Compute(t.Context(), c.p, &c.args))
		}
	}
	require.Equal(t, want, [][]float32{download(c.args.O), download(c.args.DQ), download(c.args.DK)})

	only := b.Kernels()[0]
	only.Device = false
	require.ErrorContains(t, only.Compute(t.Context(), c.p, &c.args), "does not support tensors on a device")
	c.args.V = flashkit.F32(make([]float32, c.args.V.Len()), 2, 2, 70, 40)
	require.EqualError(t, c.forward(), "flashkit: V = elsewhere: must be a tensor on GPU 0 (Fake GPU)")
	k := b.Kernels()[0]
	require.EqualError(t, k.Compute(t.Context(), c.p, &c.args), "flashkit: V = on the host: must lie where Q does, on GPU 0 (Fake GPU)")
}

// What is launched, for one problem of each shape of call.
func TestLaunches(t *testing.T) {
	b, f := openFake(t)
	for _, c := range []struct {
		problem, kernel string
		want            []string
	}{
		{"b2-h3-g3-n100-m50-d40-bf16", "cuda/fwd_sm80", []string{"fwd_sm80_bf16_d64"}},
		{"b2-h3-g3-n100-m50-d40-f32", "", []string{"fwd_f32_d64"}},
		{"b1-h8-g2-n1-m5000-d128-f16", "", []string{"decode_sm80_f16_d128"}},
		{"b1-h8-g2-n1-m50-d128-f16", "cuda/decode_sm80", []string{"decode_sm80_f16_d128"}},
	} {
		call := newDeviceCall(t, b, c.problem)
		call.fwdOptions.Kernel = c.kernel
		f.launches = nil
		require.NoError(t, call.forward())
		var got []string
		for _, l := range f.launches {
			got = append(got, l.name)
			require.Equal(t, call.s.handle, l.stream)
		}
		require.Equal(t, c.want, got, c.problem)
		call.close(t)
	}
}

// A kernel whose blocks stay leaves multiprocessors free if it is asked to, and takes all the next time.
func TestSpare(t *testing.T) {
	b, f := openFake(t)
	for _, name := range []string{"b1-h200-g200-n8-m8-d64-bf16", "b1-h200-g200-n8-m8-d64-bf16-alibi", "b1-h200-g200-n8-m8-d128-bf16-causal"} {
		c := newDeviceCall(t, b, name)
		c.fwdOptions.Kernel = "cuda/fwd_sm90"
		for _, spare := range []int{0, 4, 131, 0} {
			c.fwdOptions.Spare, f.launches = spare, nil
			require.NoError(t, c.forward())
			require.Len(t, f.launches, 1)
			require.Equal(t, 132-spare, f.launches[0].blocks, name)
		}
		for _, spare := range []int{-1, 132} {
			c.fwdOptions.Spare = spare
			require.ErrorContains(t, c.forward(), "Options.Spare")
		}
		c.close(t)
	}
}

func TestBadDeviceArguments(t *testing.T) {
	b, f := openFake(t)
	other, _ := openFake(t)
	elsewhere := newDeviceCall(t, other, "b1-h2-g1-n8-m8-d8-f32")
	defer elsewhere.close(t)
	for field, spoil := range map[string]func(*deviceCall){
		"flashkit: Q = none: the tensor is missing":                                             func(c *deviceCall) { c.args.Q = flashkit.Tensor{} },
		"flashkit: K = GPU 0 (Fake GPU): the tensor is not on GPU 0 (Fake GPU) of this backend": func(c *deviceCall) { c.args.K = elsewhere.args.K },
		"flashkit: Stream = of another backend: must belong to the same one":                    func(c *deviceCall) { c.s = elsewhere.s },
		"flashkit: V.shape = [1 1 8 4]: must be [1 1 8 8]":                                      func(c *deviceCall) { c.args.V = buffer(c.args.V).Tensor(flashkit.Float32, 0, 1, 1, 8, 4) },
		"flashkit: V.len = 60: is too short for shape [1 1 8 8] with strides [64 64 8 1]":       func(c *deviceCall) { c.args.V = buffer(c.args.V).Tensor(flashkit.Float32, 4, 1, 1, 8, 8) },
		"flashkit: V.len = 0: is too short for shape [1 1 8 8] with strides [64 64 8 1]":        func(c *deviceCall) { c.args.V = buffer(c.args.V).Tensor(flashkit.Float32, 1000, 1, 1, 8, 8) },
		"flashkit: K.len = 0: is too short for shape [1 1 8 8] with strides [64 64 8 1]":        func(c *deviceCall) { c.args.K = buffer(c.args.K).Tensor(flashkit.Float32, -1, 1, 1, 8, 8) },
		"flashkit: V.dtype = unknown: must be f32":                                              func(c *deviceCall) { c.args.V = buffer(c.args.V).Tensor(200, 0, 1, 1, 8, 8) },
		"flashkit: O = output: shares memory with K": func(c *deviceCall) {
			c.args.O = buffer(c.args.Q).Tensor(flashkit.Float32, 0, 1, 2, 8, 8)
			c.args.K = buffer(c.args.Q).Tensor(flashkit.Float32, 0, 1, 1, 8, 8)
			c.args.Q = buffer(c.args.V).Tensor(flashkit.Float32, 0, 1, 2, 8, 8).WithStrides(0, 0, 8)
		},
		"flashkit: Kernel = cuda/fwd_sm12: is not a forward kernel of cuda":                   func(c *deviceCall) { c.fwdOptions.Kernel = "cuda/fwd_sm12" },
		"cuda/fwd_sm80: does not support b1-h2-g1-n8-m8-d8-f32: supports [f16 bf16], not f32": func(c *deviceCall) { c.fwdOptions.Kernel = "cuda/fwd_sm80" },
		"flashkit: KVHeads = 3: must divide Heads = 2":                                        func(c *deviceCall) { c.p.KVHeads = 3 },
	} {
		c := newDeviceCall(t, b, "b1-h2-g1-n8-m8-d8-f32")
		own := c.s
		spoil(c)
		require.EqualError(t, c.forward(), field)
		c.s = own
		c.close(t)
	}
	c := newDeviceCall(t, b, "b1-h2-g1-n8-m8-d8-f32")
	require.NoError(t, buffer(c.args.Q).Free())
	require.EqualError(t, c.forward(), "flashkit: Q = freed: its buffer is freed")
	require.EqualError(t, c.backward(), "flashkit: Q = freed: its buffer is freed")
	require.Error(t, buffer(c.args.Q).Free())
	require.ErrorContains(t, Upload(c.s, buffer(c.args.Q), 0, []float32{1}), "freed")
	require.ErrorContains(t, Upload(c.s, buffer(c.args.K), 8, make([]float32, 63)), "Buffer.bytes = 256: is too small for 252 bytes at offset 8")
	require.EqualError(t, UploadTensor(c.s, buffer(c.args.Q), c.args.K), "flashkit: Tensor = on a device: must be in host memory")
	require.ErrorContains(t, DownloadTensor(c.s, flashkit.Zeros(flashkit.Float32, 1, 1, 1, 1000), buffer(c.args.K)), "Buffer.bytes = 256: is too small for 4000 bytes")
	c.buffers = c.buffers[1:]
	c.close(t)
	ctx, p := context.Background(), problem(t, "b1-h2-g1-n8-m8-d8-f32")
	var none context.Context
	require.EqualError(t, b.Forward(ctx, c.s, p, nil), "flashkit: Args = nil: is missing")
	require.EqualError(t, b.Backward(ctx, c.s, p, nil), "flashkit: Args = nil: is missing")
	require.EqualError(t, elsewhere.b.Forward(ctx, nil, p, &elsewhere.args), "flashkit: Stream = nil: is missing")
	require.EqualError(t, elsewhere.b.Forward(none, elsewhere.s, p, &elsewhere.args), "flashkit: ctx = nil: is missing")
	require.EqualError(t, Upload(c.s, nil, 0, []float32{1}), "flashkit: Buffer = nil: is missing")
	_, err := b.Alloc(-1)
	require.EqualError(t, err, "flashkit: bytes = -1: must not be negative")
	require.Empty(t, f.launches)
}

// host runs a stem on tensors in the host's memory.
func (b *Backend) host(ctx context.Context, id stemID, p flashkit.Problem, args *flashkit.Args) error {
	var c flashkit.Call
	if err := c.Set(p, stems[id].pass, args); err != nil {
		return err
	}
	return b.runHost(ctx, id, &c)
}

// Out of memory is an error like any other; the device goes on.
func TestOutOfMemory(t *testing.T) {
	b, f := openFake(t)
	f.limit = 1 << 20
	_, err := b.Alloc(2 << 20)
	require.True(t, isOutOfMemory(err), err)
	p := problem(t, "b1-h1-g1-n4096-m4096-d64-f32")
	x := func(s [4]int) flashkit.Tensor {
		return flashkit.F32(make([]float32, s[0]*s[1]*s[2]*s[3]), s[0], s[1], s[2], s[3])
	}
	err = b.host(context.Background(), fwdF32, p, &flashkit.Args{Q: x(p.QShape()), K: x(p.KShape()), V: x(p.VShape()), O: x(p.OShape())})
	require.True(t, isOutOfMemory(err), err)
	f.limit = 0
	c := newDeviceCall(t, b, "b1-h2-g1-n8-m8-d8-f32")
	f.failures["cuMemAllocAsync"] = f.fail("cuMemAllocAsync", codeOutOfMemory)
	require.True(t, isOutOfMemory(c.backward()))
	delete(f.failures, "cuMemAllocAsync")
	require.NoError(t, c.backward())
	c.close(t)
}

// A sticky error loses the device; every later call says so and why.
func TestLostDevice(t *testing.T) {
	f := newFake()
	b, err := OpenWith(&f.Driver, 0)
	require.NoError(t, err)
	c := newDeviceCall(t, b, "b1-h2-g1-n8-m8-d8-f32")
	f.failures["cuStreamSynchronize"] = f.fail("cuStreamSynchronize", 700)
	require.EqualError(t, c.s.Sync(), "cuStreamSynchronize: CUDA_ERROR_FAKE (700)")
	clear(f.failures)
	for _, err := range []error{c.s.Sync(), c.forward(), c.backward(), c.buffers[0].Free()} {
		require.ErrorContains(t, err, "the device was lost in an earlier error: cuStreamSynchronize: CUDA_ERROR_FAKE (700)")
		var driver *Error
		require.True(t, errors.As(err, &driver))
	}
	require.NoError(t, b.Close())
	require.ErrorIs(t, c.s.Sync(), errClosed)
}

// A call that fails on the way leaves nothing behind; openFake looks.
func TestNothingLeaksOnFailure(t *testing.T) {
	for _, call := range []string{"cuLaunchKernel", "cuMemAllocAsync", "cuMemHostAlloc", "cuMemAlloc", "cuStreamCreate", "cuStreamSynchronize", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuModuleLoadDataEx", "cuFuncSetAttribute"} {
		b, f := openFake(t)
		f.failures[call] = f.fail(call, 1)
		p := problem(t, "b2-h2-g2-n8-m8-d8-f32")
		x := func(s [4]int) flashkit.Tensor {
			return flashkit.F32(make([]float32, s[0]*s[1]*s[2]*s[3]), s[0], s[1], s[2], s[3])
		}
		arg := &flashkit.Args{Q: x(p.QShape()), K: x(p.KShape()), V: x(p.VShape()), O: x(p.OShape()), LSE: x(p.LSEShape()), DO: x(p.OShape()), DQ: x(p.QShape()), DK: x(p.KShape()), DV: x(p.VShape())}
		require.Error(t, b.host(context.Background(), bwdF32, p, arg), call)
		clear(f.failures)
		require.NoError(t, b.host(context.Background(), bwdF32, p, arg), call)
	}
}

// A call that is canceled between chunks stops there.
func TestCanceledBetweenChunks(t *testing.T) {
	b, f := openFake(t)
	b.staging.chunk = 1
	ctx, cancel := context.WithCancel(context.Background())
	launch := f.LaunchKernel
	once := sync.OnceFunc(cancel)
	b.drv.LaunchKernel = launch
	copyIn := b.drv.MemcpyHtoDAsync
	var copies int
	var mu sync.Mutex
	b.drv.MemcpyHtoDAsync = func(to Pointer, from unsafe.Pointer, n int, s StreamHandle) error {
		once()
		mu.Lock()
		copies++
		mu.Unlock()
		return copyIn(to, from, n, s)
	}
	p := problem(t, "b200-h1-g1-n8-m8-d8-f32")
	x := func(s [4]int) flashkit.Tensor {
		return flashkit.F32(make([]float32, s[0]*s[1]*s[2]*s[3]), s[0], s[1], s[2], s[3])
	}
	err := b.host(ctx, fwdF32, p, &flashkit.Args{Q: x(p.QShape()), K: x(p.KShape()), V: x(p.VShape()), O: x(p.OShape())})
	require.ErrorIs(t, err, context.Canceled)
	require.LessOrEqual(t, copies, cap(b.staging.free))
}

// Calls on the device's memory do not allocate.
func TestDeviceAllocations(t *testing.T) {
	b, f := openFake(t)
	c := newDeviceCall(t, b, "b1-h2-g1-n8-m8-d8-f32")
	defer c.close(t)
	require.NoError(t, c.forward())
	require.NoError(t, c.backward())
	memory := f.MemAllocAsync
	b.drv.LaunchKernel = func(Function, int, int, int, StreamHandle, unsafe.Pointer) error { return nil }
	b.drv.MemAllocAsync = func(int, StreamHandle) (Pointer, error) { return 1 << 45, nil }
	b.drv.MemFreeAsync = func(Pointer, StreamHandle) error { return nil }
	_ = memory
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if c.forward() != nil || c.backward() != nil {
			t.Error("failed")
		}
	}))
}

func TestConcurrentCalls(t *testing.T) {
	b, _ := openFake(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			c := newDeviceCall(t, b, "b1-h2-g1-n20-m20-d8-f32-causal")
			for range 5 {
				if err := errors.Join(c.forward(), c.backward(), c.s.Sync()); err != nil {
					t.Error(err)
				}
			}
			c.close(t)
		})
	}
	all.Wait()
}
