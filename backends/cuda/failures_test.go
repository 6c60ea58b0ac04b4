package cuda

import (
	"context"
	"errors"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// host runs a family on host tensors.
func (b *Backend) host(ctx context.Context, id familyID, p flashkit.Problem, args *flashkit.Args) error {
	var c flashkit.Call
	if err := c.Set(p, families[id].pass, args); err != nil {
		return err
	}
	return b.runHost(ctx, id, &c)
}

// Out of memory is an error like any other; the device remains usable.
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

// A sticky error loses the device; every later call reports it.
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

// A call that fails midway leaks nothing; openFake checks.
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
