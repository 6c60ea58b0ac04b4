// Package gputest provides a GPU for tests. The GPU computes nothing.
package gputest

import (
	"math"
	"unsafe"

	"github.com/flashkit-go/flashkit/backends/cuda"
)

// A GPU is a stand-in that computes nothing. The time between any two of its events is half a
// millisecond. The GPU counts resources that are not freed.
type GPU struct {
	next     uintptr
	Live     map[uintptr]int // bytes of device memory, by address; 0 for other handles
	names    []string        // names of functions, in order of their handles
	Launched map[string]int  // number of launches by function
}

// New returns a GPU without memory or launches.
func New() *GPU {
	return &GPU{next: math.MaxInt>>17 + 1, Live: map[uintptr]int{}, Launched: map[string]int{}}
}

// Plan is the launch plan that package cuda reads from every kernel's compiled module: threads per
// block, bytes of shared memory, rows of a tile, keys of a tile.
var Plan = [4]int32{128, 1024, 64, 64}

func (g *GPU) open(bytes int) (uintptr, error) {
	h := g.next
	g.next += uintptr(bytes) + 1<<12
	g.Live[h] = bytes
	return h, nil
}

func (g *GPU) shut(h uintptr) error {
	delete(g.Live, h)
	return nil
}

// attributes are an H200's device attributes, by their numbers in the CUDA driver.
var attributes = map[cuda.Attribute]int{13: 1980000, 16: 132, 36: 3201000, 37: 6016, 38: 60 << 20, 41: 1, 75: 9, 76: 0, 115: 1}

// Driver returns the driver of the GPU.
func (g *GPU) Driver() *cuda.Driver {
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
			*(*[4]int32)(to) = Plan // tests read nothing else back
			return nil
		},
		MemsetD32Async: func(cuda.Pointer, uint32, int, cuda.StreamHandle) error { return nil },
		ModuleLoadData: func([]byte) (cuda.Module, error) { return 1, nil },
		ModuleUnload:   func(cuda.Module) error { return nil },
		ModuleGetFunction: func(_ cuda.Module, name string) (cuda.Function, error) {
			g.names = append(g.names, name)
			return cuda.Function(len(g.names)), nil
		},
		ModuleGetGlobal: func(cuda.Module, string) (cuda.Pointer, int, error) { return 1, int(unsafe.Sizeof(Plan)), nil },
		FuncSetShared:   func(cuda.Function, int) error { return nil },
		FuncBlocksPerSM: func(cuda.Function, int, int) (int, error) { return 2, nil },
		LaunchKernel: func(f cuda.Function, _, _, _ int, _ cuda.StreamHandle, _ unsafe.Pointer) error {
			g.Launched[g.names[f-1]]++
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
