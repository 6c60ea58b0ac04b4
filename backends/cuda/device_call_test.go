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
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/half"
)

// A deviceCall is a problem's tensors in device memory.
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
	if dtype == flashkit.Int8 {
		codes := make([]int8, n)
		for i := range codes {
			codes[i] = int8(rand.IntN(255) - 127)
		}
		return Upload(s, m, 0, codes)
	}
	if dtype == flashkit.Int32 { // ends of ranges, in any order
		ends := make([]int32, n)
		for i := range ends {
			ends[i] = rand.Int32N(64)
		}
		return Upload(s, m, 0, ends)
	}
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

// Both APIs compute the same.
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

// A kernel also supports tensors on the device, and waits for the results. Other backends' kernels
// do not, and no kernel supports a mix.
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

// Calls on device tensors do not allocate.
func TestDeviceAllocations(t *testing.T) {
	b, _ := openFake(t)
	c := newDeviceCall(t, b, "b1-h2-g1-n8-m8-d8-f32")
	defer c.close(t)
	require.NoError(t, c.forward())
	require.NoError(t, c.backward())
	b.drv.LaunchKernel = func(Function, int, int, int, StreamHandle, unsafe.Pointer) error { return nil }
	b.drv.MemAllocAsync = func(int, StreamHandle) (Pointer, error) { return fakeAddress, nil }
	b.drv.MemFreeAsync = func(Pointer, StreamHandle) error { return nil }
	require.Zero(t, allocs.PerRun(100, func() {
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

// download returns a dense tensor's elements.
func (c *deviceCall) download(t testing.TB, x flashkit.Tensor) []float32 {
	s := x.Shape()
	n := s[0] * s[1] * s[2] * s[3]
	out := make([]float32, n)
	if x.DType() == flashkit.Float32 {
		require.NoError(t, Download(c.s, out, buffer(x), 0))
		return out
	}
	bits := make([]uint16, n)
	require.NoError(t, Download(c.s, bits, buffer(x), 0))
	for i, b := range bits {
		if out[i] = half.FromBF16(b); x.DType() == flashkit.Float16 {
			out[i] = half.FromF16(b)
		}
	}
	return out
}

// Function view finds the place of an argument by its index.
func TestArgumentsHaveViews(t *testing.T) {
	var names []string
	for _, a := range allArguments {
		names = append(names, a.Name)
	}
	require.Equal(t, []string{"Q", "K", "V", "O", "LSE", "DO", "DLSE", "DQ", "DK", "DV", "Bias", "DBias", "Mask", "Slopes", "Sink", "DSink", "KScale", "VScale", "RowMax", "Ranges"}, names)
}
