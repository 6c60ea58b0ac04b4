// Package gorgoniacu runs the kernels of package cuda in a program that already uses
// gorgonia.org/cu. The kernels run in that program's context, on its streams and in its memory.
// Other programs should call cuda.Open, which needs no cgo and no CUDA headers, and starts without
// a driver.
package gorgoniacu

import (
	"errors"
	"reflect"
	"runtime"
	"unsafe"

	"github.com/flashkit-go/flashkit/backends/cuda"
	"gorgonia.org/cu"
)

// Open opens a backend in ctx, which may be any context of a device. The program still owns ctx and
// must keep it until the backend is closed. Errors are as for cuda.OpenWith, or report an invalid
// context.
func Open(ctx cu.CUContext) (*cuda.Backend, error) {
	device, err := deviceOf(ctx)
	if err != nil {
		return nil, err
	}
	d := Driver()
	d.DevicePrimaryCtxRetain = func(int) (cuda.Context, error) { return number[cuda.Context](ctx), nil }
	d.DevicePrimaryCtxRelease = func(int) error { return nil }
	return cuda.OpenWith(d, device)
}

// deviceOf returns the device of a context, and restores the thread's current context.
func deviceOf(ctx cu.CUContext) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := check("cuCtxPushCurrent", cu.PushCurrentCtx(ctx)); err != nil {
		return 0, err
	}
	device, err := cu.CurrentDevice()
	return int(device), errors.Join(check("cuCtxGetDevice", err), popCurrent())
}

// Stream returns the handle of a stream of the backend's context, for Backend.WrapStream;
// cu.NoStream is the default stream.
func Stream(s cu.Stream) cuda.StreamHandle { return number[cuda.StreamHandle](s) }

// Pointer returns the address of memory in the backend's context, for Backend.Wrap.
func Pointer(p cu.DevicePtr) cuda.Pointer { return cuda.Pointer(p) }

// Driver returns the driver functions that cuda.OpenWith needs. The opened backend works in the
// device's primary context, which cu.Device.RetainPrimaryCtx also returns. Functions that cu lacks,
// or whose form in cu is unsuitable, call the driver directly.
func Driver() *cuda.Driver {
	d := &cuda.Driver{
		Init:             func() error { return nil }, // cu's init function has called cuInit, or ended the program
		DriverGetVersion: version,
		DeviceGetCount: func() (int, error) {
			n, err := cu.NumDevices()
			return n, check("cuDeviceGetCount", err)
		},
		DeviceGetName: func(device int) (string, error) {
			name, err := cu.Device(device).Name()
			return name, check("cuDeviceGetName", err)
		},
		DeviceTotalMem: func(device int) (int, error) {
			n, err := cu.Device(device).TotalMem()
			return int(n), check("cuDeviceTotalMem", err)
		},
		DeviceAttribute: func(device int, a cuda.Attribute) (int, error) {
			n, err := cu.Device(device).Attribute(cu.DeviceAttribute(a))
			return n, check("cuDeviceGetAttribute", err)
		},
		DevicePrimaryCtxRetain: func(device int) (cuda.Context, error) {
			ctx, err := cu.Device(device).RetainPrimaryCtx()
			return number[cuda.Context](ctx), check("cuDevicePrimaryCtxRetain", err)
		},
		DevicePrimaryCtxRelease: func(device int) error {
			return check("cuDevicePrimaryCtxRelease", cu.Device(device).ReleasePrimaryCtx())
		},
		CtxPushCurrent: func(ctx cuda.Context) error {
			return check("cuCtxPushCurrent", cu.PushCurrentCtx(handle[cu.CUContext](ctx)))
		},
		CtxPopCurrent: popCurrent,

		KeepFreed: keepFreed,
	}
	memory(d)
	modules(d)
	streams(d)
	return d
}

func memory(d *cuda.Driver) {
	d.MemAlloc = func(bytes int) (cuda.Pointer, error) {
		p, err := cu.MemAlloc(int64(bytes))
		return cuda.Pointer(p), check("cuMemAlloc", err)
	}
	d.MemFree = func(p cuda.Pointer) error { return check("cuMemFree", cu.MemFree(cu.DevicePtr(p))) }
	d.MemAllocAsync, d.MemFreeAsync = allocAsync, freeAsync
	d.MemHostAlloc = hostAlloc
	d.MemFreeHost = func(p unsafe.Pointer) error { return check("cuMemFreeHost", cu.MemFreeHost(p)) }
	d.MemcpyHtoDAsync, d.MemcpyDtoHAsync = toDevice, toHost
	d.DeviceCanAccessPeer, d.CtxEnablePeerAccess, d.MemcpyPeerAsync, d.Memcpy3DPeerAsync = canAccess, enableAccess, toPeer, rowsToPeer
	d.MemsetD32Async = func(to cuda.Pointer, value uint32, words int, s cuda.StreamHandle) error {
		return check("cuMemsetD32Async", cu.MemsetD32Async(cu.DevicePtr(to), uint(value), int64(words), handle[cu.Stream](s)))
	}
}

func modules(d *cuda.Driver) {
	d.ModuleLoadData = func(image []byte) (cuda.Module, error) {
		m, err := cu.LoadDataEx(unsafe.String(unsafe.SliceData(image), len(image)))
		return number[cuda.Module](m), check("cuModuleLoadDataEx", err)
	}
	d.ModuleUnload = func(m cuda.Module) error {
		return check("cuModuleUnload", handle[cu.Module](m).Unload())
	}
	d.ModuleGetFunction = func(m cuda.Module, name string) (cuda.Function, error) {
		f, err := handle[cu.Module](m).Function(name)
		return number[cuda.Function](f), check("cuModuleGetFunction", err)
	}
	d.ModuleGetGlobal = func(m cuda.Module, name string) (cuda.Pointer, int, error) {
		p, n, err := handle[cu.Module](m).Global(name)
		return cuda.Pointer(p), int(n), check("cuModuleGetGlobal", err)
	}
	d.FuncSetShared = setShared
	d.FuncBlocksPerSM = func(f cuda.Function, threads, shared int) (int, error) {
		n, err := handle[cu.Function](f).MaxActiveBlocksPerMultiProcessor(threads, int64(shared))
		return n, check("cuOccupancyMaxActiveBlocksPerMultiprocessor", err)
	}
	d.LaunchKernel, d.LaunchDependent, d.LaunchCluster, d.LaunchDependentCluster = launch, launchDependent, launchCluster, launchDependentCluster
	d.TensorMapEncodeTiled = encodeTiled
}

func streams(d *cuda.Driver) {
	d.StreamCreate = func() (cuda.StreamHandle, error) {
		s, err := cu.MakeStream(cu.NonBlocking)
		return number[cuda.StreamHandle](s), check("cuStreamCreate", err)
	}
	d.StreamCreatePriority = func(priority int) (cuda.StreamHandle, error) {
		s, err := cu.MakeStreamWithPriority(priority, cu.NonBlocking)
		return number[cuda.StreamHandle](s), check("cuStreamCreateWithPriority", err)
	}
	d.StreamDestroy = func(s cuda.StreamHandle) error {
		stream := handle[cu.Stream](s)
		return check("cuStreamDestroy", stream.Destroy())
	}
	d.StreamSynchronize = func(s cuda.StreamHandle) error {
		return check("cuStreamSynchronize", handle[cu.Stream](s).Synchronize())
	}
	d.StreamIsCapturing = isCapturing
	d.StreamGetID = streamID
	d.StreamWaitEvent = func(s cuda.StreamHandle, e cuda.EventHandle) error {
		return check("cuStreamWaitEvent", handle[cu.Stream](s).Wait(handle[cu.Event](e), 0))
	}
	d.EventCreate = func() (cuda.EventHandle, error) {
		e, err := cu.MakeEvent(cu.DefaultEvent)
		return number[cuda.EventHandle](e), check("cuEventCreate", err)
	}
	d.EventDestroy = func(e cuda.EventHandle) error {
		event := handle[cu.Event](e)
		return check("cuEventDestroy", cu.DestroyEvent(&event))
	}
	d.EventRecord = func(e cuda.EventHandle, s cuda.StreamHandle) error {
		return check("cuEventRecord", handle[cu.Event](e).Record(handle[cu.Stream](s)))
	}
	d.EventSynchronize = func(e cuda.EventHandle) error {
		return check("cuEventSynchronize", handle[cu.Event](e).Synchronize())
	}
	d.EventElapsedTime = func(from, to cuda.EventHandle) (float32, error) {
		ms, err := handle[cu.Event](from).Elapsed(handle[cu.Event](to))
		return float32(ms), check("cuEventElapsedTime", err)
	}
}

// A cuHandle is a handle of cu: a struct of one unexported C pointer.
type cuHandle interface {
	cu.CUContext | cu.Stream | cu.Event | cu.Module | cu.Function
}

const _ = -(unsafe.Sizeof(cu.CUContext{}) ^ 8 | unsafe.Sizeof(cu.Stream{}) ^ 8 | unsafe.Sizeof(cu.Event{}) ^ 8 |
	unsafe.Sizeof(cu.Module{}) ^ 8 | unsafe.Sizeof(cu.Function{}) ^ 8) // does not compile unless each is one pointer

// handle returns cu's handle for a handle of package cuda.
func handle[C cuHandle, H ~uintptr](h H) C { return *(*C)(unsafe.Pointer(&h)) }

// number returns package cuda's handle for a handle of cu.
func number[H ~uintptr, C cuHandle](c C) H { return *(*H)(unsafe.Pointer(&c)) }

// check converts an error of cu to an error of package cuda. cu's errors have an unexported integer
// type, whose value is the driver's code.
func check(call string, err error) error {
	if err == nil {
		return nil
	}
	code := reflect.ValueOf(err)
	if !code.CanInt() {
		return err
	}
	return fail(call, int(code.Int()))
}
