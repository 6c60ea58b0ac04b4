// Package cuda computes attention on an NVIDIA GPU. The driver is loaded when a
// backend is opened, without cgo, so that one program starts on machines with
// and without a GPU.
//
// There are two APIs. The kernels of a Backend take host tensors, like those of
// every backend, and stream them through the GPU. The methods of a Backend work on
// device memory: Alloc, NewStream, Upload, Forward, Backward, Download. They are
// asynchronous; only Stream.Sync waits for the GPU.
package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
)

// A Backend runs attention on one NVIDIA GPU. It is safe for concurrent use.
type Backend struct {
	drv     *Driver
	dev     Device
	context Context
	images  images
	args    sync.Pool // *arguments
	lanes   lanes     // staging of host tensors
	maps    tensorMaps
	choices choices
	lost    atomic.Pointer[error]
	closed  atomic.Bool
	poison  bool // tests: workspace is filled with NaN
}

// A Device describes a GPU.
type Device struct {
	Ordinal      int    // its number, from 0, in the driver's order
	Name         string // such as NVIDIA H200
	Major, Minor int    // compute capability
	SMs          int    // streaming multiprocessors
	Memory       int    // bytes
	L2           int    // bytes
	ClockMHz     int    // of the multiprocessors, at most
	Bandwidth    int    // of the memory, bytes per second, by clock and width
	Driver       int    // CUDA version of the driver: 13000 is 13.0
}

// oldestDriver is the CUDA version whose drivers load the images.
const oldestDriver = 13000

// Open opens the first GPU. The error wraps flashkit.ErrUnavailable and says
// which of them it is: no driver library, driver too old, no device, or a compute
// capability below 7.0.
func Open() (*Backend, error) { return OpenDevice(0) }

// OpenDevice opens the GPU of that number.
func OpenDevice(ordinal int) (*Backend, error) {
	d, err := openDriver()
	if err != nil {
		return nil, unavailable(err)
	}
	return OpenWith(d, ordinal)
}

// OpenWith opens a GPU through a driver of the caller's.
func OpenWith(d *Driver, ordinal int) (*Backend, error) {
	b := &Backend{drv: d, args: sync.Pool{New: func() any { return new(arguments) }}, lanes: newLanes()}
	var err error
	if b.dev, err = describe(d, ordinal); err != nil {
		return nil, unavailable(err)
	}
	if b.context, err = d.DevicePrimaryCtxRetain(ordinal); err != nil {
		return nil, unavailable(fmt.Errorf("no context on %s: %w", b.dev.Name, err))
	}
	if err := d.KeepFreed(ordinal); err != nil {
		return nil, errors.Join(unavailable(err), d.DevicePrimaryCtxRelease(ordinal))
	}
	b.images.arch = b.dev.Major*10 + b.dev.Minor
	return b, nil
}

func unavailable(err error) error {
	return fmt.Errorf("cuda: %w: %w", flashkit.ErrUnavailable, err)
}

// describe looks at a device and refuses those that no kernel could run on.
func describe(d *Driver, ordinal int) (Device, error) {
	dev := Device{Ordinal: ordinal}
	if err := d.Init(); err != nil {
		var e *Error
		if errors.As(err, &e) && e.Code == codeNoDevice {
			return dev, fmt.Errorf("no device: %w", err)
		}
		return dev, err
	}
	var err error
	if dev.Driver, err = d.DriverGetVersion(); err != nil {
		return dev, err
	}
	if dev.Driver < oldestDriver {
		return dev, fmt.Errorf("driver too old: it supports CUDA %d.%d; the kernels require %d.%d", dev.Driver/1000, dev.Driver%1000/10, oldestDriver/1000, oldestDriver%1000/10)
	}
	n, err := d.DeviceGetCount()
	if err != nil {
		return dev, err
	}
	if ordinal < 0 || ordinal >= n {
		return dev, fmt.Errorf("no device: number %d of %d", ordinal, n)
	}
	if dev.Name, err = d.DeviceGetName(ordinal); err != nil {
		return dev, err
	}
	if dev.Memory, err = d.DeviceTotalMem(ordinal); err != nil {
		return dev, err
	}
	var memoryClock, bus, pools, unified int
	for _, a := range []struct {
		to *int
		of Attribute
	}{
		{&dev.Major, attrMajor}, {&dev.Minor, attrMinor}, {&dev.SMs, attrSMs}, {&dev.L2, attrL2}, {&dev.ClockMHz, attrClockRate},
		{&memoryClock, attrMemoryClock}, {&bus, attrMemoryBus}, {&pools, attrMemoryPools}, {&unified, attrUnifiedAddressing},
	} {
		if *a.to, err = d.DeviceAttribute(ordinal, a.of); err != nil {
			return dev, err
		}
	}
	dev.ClockMHz /= 1000
	dev.Bandwidth = 2 * memoryClock * 1000 * bus / 8
	if dev.Major < 7 {
		return dev, fmt.Errorf("architecture below sm_70: %s has compute capability %d.%d", dev.Name, dev.Major, dev.Minor)
	}
	if pools == 0 || unified == 0 {
		return dev, fmt.Errorf("%s has no memory pools or no unified addresses", dev.Name)
	}
	return dev, nil
}

// Name returns "cuda".
func (b *Backend) Name() string { return "cuda" }

// Device describes the GPU.
func (b *Backend) Device() Device { return b.dev }

// Hardware names the GPU and the driver, on which the speed of kernels depends.
func (b *Backend) Hardware() (device, driver string) {
	return fmt.Sprintf("%s, %d multiprocessors", b.dev.Name, b.dev.SMs), fmt.Sprintf("CUDA %d.%d", b.dev.Driver/1000, b.dev.Driver%1000/10)
}

// Close frees what the backend holds on the device. No call may be running, and
// buffers and streams must have been closed; it is an error to use the backend
// afterwards.
func (b *Backend) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	err := b.within(func() error { return errors.Join(b.lanes.close(b.drv), b.images.close(b.drv)) })
	return errors.Join(err, b.drv.DevicePrimaryCtxRelease(b.dev.Ordinal))
}

var errClosed = errors.New("the backend is closed")

// do runs f with the device's context current, unless the device is lost or the
// backend closed. A sticky error of f loses the device: every later call says so.
func (b *Backend) do(f func() error) error {
	if b.closed.Load() {
		return errClosed
	}
	if lost := b.lost.Load(); lost != nil {
		return fmt.Errorf("the device was lost in an earlier error: %w", *lost)
	}
	err := b.within(f)
	if err != nil && isSticky(err) {
		first := err
		b.lost.CompareAndSwap(nil, &first)
	}
	return err
}

// within runs f with the device's context current on the thread, and leaves the
// thread as it was: the program may use contexts of its own.
func (b *Backend) within(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := b.drv.CtxPushCurrent(b.context); err != nil {
		return err
	}
	return errors.Join(f(), b.drv.CtxPopCurrent())
}

// String returns what a person calls the device.
func (d *Device) String() string { return fmt.Sprintf("GPU %d (%s)", d.Ordinal, d.Name) }
