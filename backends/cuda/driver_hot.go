//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// A frame is preallocated memory for one call of the driver: the call's arguments, the pointer to a
// kernel's parameters, and the configuration of a launch.
type frame struct {
	args   [11]uintptr
	params [1]unsafe.Pointer
	config launchConfig
	how    [2]launchAttribute
	copy   memcpy3DPeer
}

// A launchConfig is the driver's CUlaunchConfig. A launchAttribute is the driver's
// CUlaunchAttribute.
type launchConfig struct {
	grid, block [3]uint32
	shared      uint32
	stream      StreamHandle
	attributes  *launchAttribute
	count       uint32
}

type launchAttribute struct {
	id    uint64
	value [16]int32
}

// A memcpy3DPeer is the driver's CUDA_MEMCPY3D_PEER: source, destination, bytes per row, rows, and
// layers.
type memcpy3DPeer struct {
	src, dst    copySide
	bytes, rows int
	layers      int
}

// A copySide is one side of a memcpy3DPeer.
type copySide struct {
	x, y, z, lod int
	kind         uint32
	host         uintptr
	device       Pointer
	array        uintptr
	context      Context
	pitch, rows  int // bytes from row to row, and rows of a layer
}

func (f *frame) call(c *calls, s *symbol, n int) error {
	r, _, _ := purego.SyscallN(s.address, f.args[:n]...)
	return c.check(s, r)
}

// hotCalls are the driver calls that must not allocate heap memory: they reuse frames from a pool.
type hotCalls struct {
	*calls
	frames sync.Pool
}

func (h *hotCalls) do(s *symbol, args ...uintptr) error {
	f := h.frames.Get().(*frame)
	n := copy(f.args[:], args)
	err := f.call(h.calls, s, n)
	h.frames.Put(f)
	return err
}

// ask calls y, a query of the stream s, and returns the number that the query stores.
func (h *hotCalls) ask(y *symbol, s StreamHandle) (uint64, error) {
	f := h.frames.Get().(*frame)
	f.args = [11]uintptr{uintptr(s), uintptr(unsafe.Pointer(&f.args[2]))}
	err := f.call(h.calls, y, 2)
	x := uint64(f.args[2])
	h.frames.Put(f)
	return x, err
}

func (h *hotCalls) launches(d *Driver) {
	d.LaunchKernel = func(fn Function, blocks, threads, shared int, s StreamHandle, params unsafe.Pointer) error {
		f := h.frames.Get().(*frame)
		f.params[0] = params
		f.args = [11]uintptr{uintptr(fn), uintptr(blocks), 1, 1, uintptr(threads), 1, 1, uintptr(shared), uintptr(s), uintptr(unsafe.Pointer(&f.params)), 0}
		err := f.call(h.calls, &h.launch, 11)
		f.params[0] = nil
		h.frames.Put(f)
		return err
	}
	d.LaunchDependent = func(fn Function, blocks, threads, shared int, s StreamHandle, params unsafe.Pointer) error {
		return h.launchWith(fn, blocks, threads, shared, s, params, 1, [2]launchAttribute{{programmaticLaunch, [16]int32{1}}})
	}
	d.LaunchCluster = func(fn Function, blocks, threads, shared, cluster int, s StreamHandle, params unsafe.Pointer) error {
		return h.launchWith(fn, blocks, threads, shared, s, params, 1, [2]launchAttribute{{clusterDimension, [16]int32{int32(cluster), 1, 1}}})
	}
	d.LaunchDependentCluster = func(fn Function, blocks, threads, shared, cluster int, s StreamHandle, params unsafe.Pointer) error {
		return h.launchWith(fn, blocks, threads, shared, s, params, 2, [2]launchAttribute{{clusterDimension, [16]int32{int32(cluster), 1, 1}}, {programmaticLaunch, [16]int32{1}}})
	}
}

func (h *hotCalls) launchWith(fn Function, blocks, threads, shared int, s StreamHandle, params unsafe.Pointer, count int, how [2]launchAttribute) error {
	f := h.frames.Get().(*frame)
	f.params[0], f.how = params, how
	f.config = launchConfig{[3]uint32{uint32(blocks), 1, 1}, [3]uint32{uint32(threads), 1, 1}, uint32(shared), s, &f.how[0], uint32(count)}
	f.args = [11]uintptr{uintptr(unsafe.Pointer(&f.config)), uintptr(fn), uintptr(unsafe.Pointer(&f.params)), 0}
	err := f.call(h.calls, &h.launchEx, 4)
	f.params[0] = nil
	h.frames.Put(f)
	return err
}

func (h *hotCalls) copies(d *Driver) {
	d.MemAllocAsync = func(bytes int, s StreamHandle) (Pointer, error) {
		f := h.frames.Get().(*frame)
		f.args = [11]uintptr{uintptr(unsafe.Pointer(&f.args[3])), uintptr(bytes), uintptr(s)}
		err := f.call(h.calls, &h.allocAsync, 3)
		p := Pointer(f.args[3])
		h.frames.Put(f)
		return p, err
	}
	d.MemFreeAsync = func(p Pointer, s StreamHandle) error { return h.do(&h.freeAsync, uintptr(p), uintptr(s)) }
	d.MemcpyHtoDAsync = func(to Pointer, from unsafe.Pointer, bytes int, s StreamHandle) error {
		err := h.do(&h.toDevice, uintptr(to), uintptr(from), uintptr(bytes), uintptr(s))
		runtime.KeepAlive(from)
		return err
	}
	d.MemcpyDtoHAsync = func(to unsafe.Pointer, from Pointer, bytes int, s StreamHandle) error {
		err := h.do(&h.toHost, uintptr(to), uintptr(from), uintptr(bytes), uintptr(s))
		runtime.KeepAlive(to)
		return err
	}
	d.MemsetD32Async = func(to Pointer, value uint32, words int, s StreamHandle) error {
		return h.do(&h.set32, uintptr(to), uintptr(value), uintptr(words), uintptr(s))
	}
}

func (h *hotCalls) queues(d *Driver) {
	d.CtxPushCurrent = func(x Context) error { return h.do(&h.push, uintptr(x)) }
	d.CtxPopCurrent = func() error {
		f := h.frames.Get().(*frame)
		f.args[0] = uintptr(unsafe.Pointer(&f.args[1])) // receives the popped context
		err := f.call(h.calls, &h.pop, 1)
		h.frames.Put(f)
		return err
	}
	d.StreamIsCapturing = func(s StreamHandle) (bool, error) {
		status, err := h.ask(&h.capturing, s)
		return uint32(status) != 0, err
	}
	if h.streamID.address != 0 {
		d.StreamGetID = func(s StreamHandle) (uint64, error) { return h.ask(&h.streamID, s) }
	}
	d.StreamSynchronize = func(s StreamHandle) error { return h.do(&h.streamSync, uintptr(s)) }
	d.StreamWaitEvent = func(s StreamHandle, e EventHandle) error {
		return h.do(&h.streamWait, uintptr(s), uintptr(e), 0)
	}
	d.EventRecord = func(e EventHandle, s StreamHandle) error { return h.do(&h.eventRecord, uintptr(e), uintptr(s)) }
	d.EventSynchronize = func(e EventHandle) error { return h.do(&h.eventSync, uintptr(e)) }
}
