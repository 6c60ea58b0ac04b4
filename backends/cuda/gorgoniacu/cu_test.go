package gorgoniacu_test

import (
	"testing"
	"unsafe"

	"github.com/flashkit-go/flashkit/backends/cuda/gorgoniacu"
	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"
)

// Why these calls do not go through cu. When one of them fails with a newer
// version, direct.go has a function too many.

func TestCULosesTheVersionsError(t *testing.T) {
	newFake(t).fail("cuDriverGetVersion", 2)
	require.Equal(t, -1, cu.Version())
}

func TestCUPopAllocates(t *testing.T) {
	newFake(t)
	require.NotZero(t, testing.AllocsPerRun(10, func() { must(cu.PopCurrentCtx()) }))
}

func TestCUPanicsOverPointersBesideACopy(t *testing.T) {
	newFake(t)
	from := &withPointers{beside: new(int)}
	require.Panics(t, func() { _ = cu.MemcpyHtoDAsync(0x10000000, unsafe.Pointer(&from.data), 16, cu.NoStream) })
}

func TestCULaunchPassesEightBytes(t *testing.T) {
	f := newFake(t)
	var launched cu.Function
	*(*uintptr)(unsafe.Pointer(&launched)) = 0xf0
	block := new([paramBytes]byte)
	for i := range block {
		block[i] = 0xa5
	}
	require.NoError(t, launched.Launch(1, 1, 1, 32, 1, 1, 0, cu.NoStream, []unsafe.Pointer{unsafe.Pointer(block)}))
	require.Equal(t, block[:8], f.params()[:8])
	require.NotEqual(t, block[:], f.params())
}

func TestCUDoesNotKnowNewCodes(t *testing.T) {
	f := newFake(t)
	f.fail("cuMemAlloc", 222)
	_, err := cu.MemAlloc(1)
	require.EqualError(t, err, "UnknownErrorCode:222")
	_, err = gorgoniacu.Driver().MemAlloc(1)
	require.EqualError(t, err, "cuMemAlloc: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)")
}
