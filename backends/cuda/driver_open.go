//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"fmt"
	"math"
	"sync"
	"unsafe"
)

// openDriver loads the driver's library and looks up its functions. A function's name in the
// library may end in a version, such as _v2, which cuda.h adds in C programs.
func openDriver() (*Driver, error) {
	if err := brokenLibrary(); err != nil {
		return nil, fmt.Errorf("driver library: %w", err)
	}
	l, err := openLibrary()
	if err != nil {
		return nil, absentError{fmt.Errorf("no driver library: %w", err)}
	}
	var c calls
	if err := c.bind(l.lookup); err != nil {
		return nil, fmt.Errorf("driver too old: %w", err)
	}
	return c.driver(), nil
}

func (c *calls) driver() *Driver {
	d := new(Driver)
	c.devices(d)
	c.contexts(d)
	c.allocations(d)
	c.modules(d)
	c.streams(d)
	c.hot(d)
	return d
}

func (c *calls) hot(d *Driver) {
	h := &hotCalls{calls: c, frames: sync.Pool{New: func() any { return new(frame) }}}
	h.launches(d)
	h.copies(d)
	h.queues(d)
	h.peers(d)
}

func (c *calls) devices(d *Driver) {
	d.Init = func() error { return c.call(&c.init, 0) }
	d.DriverGetVersion = func() (int, error) {
		v := new(int32)
		err := c.call(&c.version, uintptr(unsafe.Pointer(v)))
		return int(*v), err
	}
	d.DeviceGetCount = func() (int, error) {
		n := new(int32)
		err := c.call(&c.count, uintptr(unsafe.Pointer(n)))
		return int(*n), err
	}
	d.DeviceGetName = func(device int) (string, error) {
		name := make([]byte, 256)
		err := c.call(&c.deviceName, uintptr(unsafe.Pointer(&name[0])), uintptr(len(name)-1), uintptr(device))
		return goString(&name[0]), err
	}
	d.DeviceTotalMem = func(device int) (int, error) {
		n := new(uintptr)
		err := c.call(&c.totalMem, uintptr(unsafe.Pointer(n)), uintptr(device))
		return int(*n), err
	}
	d.DeviceAttribute = func(device int, a Attribute) (int, error) {
		v := new(int32)
		err := c.call(&c.attribute, uintptr(unsafe.Pointer(v)), uintptr(a), uintptr(device))
		return int(*v), err
	}
	d.DeviceCanAccessPeer = func(device, peer int) (bool, error) {
		v := new(int32)
		err := c.call(&c.canAccess, uintptr(unsafe.Pointer(v)), uintptr(device), uintptr(peer))
		return *v != 0, err
	}
}

func (c *calls) contexts(d *Driver) {
	d.CtxEnablePeerAccess = func(x Context) error { return c.call(&c.enableAccess, uintptr(x), 0) }
	d.KeepFreed = func(device int) error {
		pool, most := new(uintptr), new(uint64)
		*most = math.MaxUint64
		if err := c.call(&c.defaultPool, uintptr(unsafe.Pointer(pool)), uintptr(device)); err != nil {
			return err
		}
		return c.call(&c.poolAttribute, *pool, poolReleaseThreshold, uintptr(unsafe.Pointer(most)))
	}
	d.DevicePrimaryCtxRetain = func(device int) (Context, error) {
		x := new(Context)
		err := c.call(&c.retain, uintptr(unsafe.Pointer(x)), uintptr(device))
		return *x, err
	}
	d.DevicePrimaryCtxRelease = func(device int) error { return c.call(&c.release, uintptr(device)) }
}

// allocations fills in the functions that allocate and free memory outside any stream.
func (c *calls) allocations(d *Driver) {
	d.MemAlloc = func(bytes int) (Pointer, error) {
		p := new(Pointer)
		err := c.call(&c.alloc, uintptr(unsafe.Pointer(p)), uintptr(bytes))
		return *p, err
	}
	d.MemFree = func(p Pointer) error { return c.call(&c.free, uintptr(p)) }
	d.MemHostAlloc = func(bytes int) (unsafe.Pointer, error) {
		p := new(unsafe.Pointer)
		err := c.call(&c.hostAlloc, uintptr(unsafe.Pointer(p)), uintptr(bytes), hostPortable)
		return *p, err
	}
	d.MemFreeHost = func(p unsafe.Pointer) error { return c.call(&c.hostFree, uintptr(p)) }
}

func (c *calls) modules(d *Driver) {
	d.ModuleLoadData = func(image []byte) (Module, error) {
		m := new(Module)
		err := c.call(&c.load, uintptr(unsafe.Pointer(m)), uintptr(unsafe.Pointer(unsafe.SliceData(image))), 0, 0, 0)
		return *m, err
	}
	d.ModuleUnload = func(m Module) error { return c.call(&c.unload, uintptr(m)) }
	d.ModuleGetFunction = func(m Module, name string) (Function, error) {
		f := new(Function)
		err := c.call(&c.function, uintptr(unsafe.Pointer(f)), uintptr(m), uintptr(cString(name)))
		return *f, err
	}
	d.ModuleGetGlobal = func(m Module, name string) (Pointer, int, error) {
		p, n := new(Pointer), new(uintptr)
		err := c.call(&c.global, uintptr(unsafe.Pointer(p)), uintptr(unsafe.Pointer(n)), uintptr(m), uintptr(cString(name)))
		return *p, int(*n), err
	}
	d.TensorMapEncodeTiled = c.encodeTiled
	d.FuncSetShared = func(f Function, bytes int) error {
		return c.call(&c.setAttribute, uintptr(f), maxDynamicShared, uintptr(bytes))
	}
	d.FuncBlocksPerSM = func(f Function, threads, shared int) (int, error) {
		n := new(int32)
		err := c.call(&c.occupancy, uintptr(unsafe.Pointer(n)), uintptr(f), uintptr(threads), uintptr(shared))
		return int(*n), err
	}
}

// encodeTiled calls cuTensorMapEncodeTiled, which requires that the map's address is a multiple of
// 64 bytes.
func (c *calls) encodeTiled(m *TensorMap, bf16 bool, at Pointer, dims *[4]uint64, strides *[3]uint64, box *[4]uint32) error {
	const alignment = 64
	room := new([len(m) + alignment]byte)
	skip := -uintptr(unsafe.Pointer(room)) % alignment
	kind := uintptr(tensorMapF16)
	if bf16 {
		kind = tensorMapBF16
	}
	steps := &[4]uint32{1, 1, 1, 1}
	err := c.call(&c.tensorMap, uintptr(unsafe.Pointer(&room[skip])), kind, 4, uintptr(at),
		uintptr(unsafe.Pointer(dims)), uintptr(unsafe.Pointer(strides)), uintptr(unsafe.Pointer(box)), uintptr(unsafe.Pointer(steps)),
		0, tensorMapSwizzle128B, tensorMapPromote256B, 0)
	*m = TensorMap(room[skip:])
	return err
}
