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
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/flashkit-go/flashkit/internal/fastest"
)

// A Backend runs attention on one NVIDIA GPU. It is safe for concurrent use.
type Backend struct {
	drv     *Driver
	dev     Device
	context Context
	images  images
	args    sync.Pool // *arguments
	staging staging   // staging of host tensors
	maps    tensorMaps
	choices fastest.Cache[stemID]
	foreign foreignLists
	peers   sync.Map // ordinals of the devices whose memory this one reaches
	lost    atomic.Pointer[error]
	closed  atomic.Bool
	poison  atomic.Bool // tests: see Poison
	eager   bool        // tests: plans that large calls gain from are taken for all
}

// oldestDriver is the CUDA version whose drivers load the images.
const oldestDriver = 13000

// OpenWith opens a GPU through a driver of the caller's, and waits for it as long as it takes.
func OpenWith(d *Driver, ordinal int) (*Backend, error) {
	b, err := openWith(d, ordinal)
	if err != nil {
		return nil, unavailable(err)
	}
	return b, nil
}

func openWith(d *Driver, ordinal int) (*Backend, error) {
	b := &Backend{drv: d, args: sync.Pool{New: func() any { return new(arguments) }}, staging: newStaging()}
	var err error
	if b.dev, err = describe(d, ordinal); err != nil {
		return nil, err
	}
	if b.context, err = d.DevicePrimaryCtxRetain(ordinal); err != nil {
		return nil, fmt.Errorf("no context on %s: %w", b.dev.Name, err)
	}
	if err := d.KeepFreed(ordinal); err != nil {
		return nil, errors.Join(err, d.DevicePrimaryCtxRelease(ordinal))
	}
	b.images.arch = b.dev.Major*10 + b.dev.Minor
	return b, nil
}

// Name returns "cuda".
func (b *Backend) Name() string { return "cuda" }

// Device describes the GPU.
func (b *Backend) Device() Device { return b.dev }

// Hardware names the GPU and the driver, on which the speed of kernels depends.
func (b *Backend) Hardware() (device, driver string) {
	return fmt.Sprintf("%s, %d multiprocessors", b.dev.Name, b.dev.SMs), "CUDA " + cudaVersion(b.dev.Driver)
}

// Close frees what the backend holds on the device. No call may be running, and
// buffers and streams must have been closed; it is an error to use the backend
// afterwards. Close does not wait for a driver that does not answer; it returns an error then.
func (b *Backend) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	_, err := answer(context.Background(), closeLimit, func() (none struct{}, err error) { return none, b.release() }, func(struct{}) {})
	if errors.Is(err, ErrSilent) {
		return fmt.Errorf("cuda: close: %w", err)
	}
	return err
}

func (b *Backend) release() error {
	err := b.within(func() error {
		return errors.Join(b.staging.close(b.drv), b.foreign.close(b.drv), b.images.close(b.drv))
	})
	return errors.Join(err, b.drv.DevicePrimaryCtxRelease(b.dev.Ordinal))
}

var errClosed = errors.New("the backend is closed")

// Within runs f with the device's primary context current on f's thread, as other libraries ask for
// that; afterwards the thread is as it was. It returns f's error, or that the device is lost or
// the backend closed.
func (b *Backend) Within(f func() error) error { return b.do(f) }

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
