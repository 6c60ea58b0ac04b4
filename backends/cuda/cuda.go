// Package cuda computes attention on an NVIDIA GPU. Opening a backend loads the driver's library,
// without cgo. The same program therefore starts on machines with and without a GPU.
//
// There are two APIs. The kernels of a Backend take host tensors, like the kernels of every
// backend, and stream them through the GPU. The second API works on device memory: Backend.Alloc,
// NewStream, Forward and Backward, and the functions Upload and Download. Forward and Backward are
// asynchronous: they enqueue work in a Stream. Stream.Sync, Upload, Download and Buffer.Free wait
// for the GPU.
package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/fastest"
)

// A Backend runs attention on one NVIDIA GPU. It is safe for concurrent use.
type Backend struct {
	drv      *Driver
	dev      Device
	context  Context
	images   images
	args     sync.Pool // *arguments
	staging  staging   // staging of host tensors
	maps     tensorMaps
	choices  fastest.Cache[familyID]
	foreign  foreignCaches
	captured capturedSeqs
	peers    sync.Map // ordinals of the devices whose memory this device accesses
	lost     atomic.Pointer[error]
	closed   atomic.Bool
	poison   atomic.Bool // tests: see Poison
	eager    bool        // tests: calls of all sizes use slots (see method slots)
}

// Name returns "cuda".
func (b *Backend) Name() string { return "cuda" }

// Device returns the description of the GPU.
func (b *Backend) Device() Device { return b.dev }

// Hardware returns the GPU and the driver in words. Package dispatch stores both texts with the
// speeds that it measures. The speeds apply only to that GPU and driver.
func (b *Backend) Hardware() (device, driver string) {
	return fmt.Sprintf("%s, %d multiprocessors", b.dev.Name, b.dev.SMs), "CUDA " + cudaVersion(b.dev.Driver)
}

var errClosed = errors.New("the backend is closed")

// Within runs f with the device's primary context current on f's thread, as other libraries
// require. Within then restores the thread's former context and returns f's error. If the device is
// lost or the backend closed, Within returns an error and does not run f.
func (b *Backend) Within(f func() error) error { return b.do(f) }

// do runs f like within. If the device is lost or the backend closed, do returns an error and does
// not run f. If f returns a sticky error, the device is lost, and every later call returns an
// error.
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

// within runs f with the device's context current. It then restores the thread's context, because
// the program may use contexts of its own.
func (b *Backend) within(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := b.drv.CtxPushCurrent(b.context); err != nil {
		return err
	}
	return errors.Join(f(), b.drv.CtxPopCurrent())
}

// Reach lets kernels and copies of b's device access another device's memory directly. Reach
// reports false if the machine does not support direct access. Reach may be called twice for a
// device. Stream.Copy also works without direct access, through host memory if necessary.
func (b *Backend) Reach(other *Backend) (bool, error) {
	switch {
	case other == nil:
		return false, missing("Backend")
	case b.reaches(other):
		return true, nil
	}
	can, err := b.drv.DeviceCanAccessPeer(b.dev.Ordinal, other.dev.Ordinal)
	if err != nil || !can {
		return false, err
	}
	err = b.do(func() error { return b.drv.CtxEnablePeerAccess(other.context) })
	if e := (*Error)(nil); errors.As(err, &e) && e.Code == codeReachedAlready {
		err = nil
	}
	if err != nil {
		return false, err
	}
	b.peers.Store(other.dev.Ordinal, true)
	return true, nil
}

func (b *Backend) reaches(other *Backend) bool {
	if b.dev.Ordinal == other.dev.Ordinal {
		return true
	}
	_, ok := b.peers.Load(other.dev.Ordinal)
	return ok
}

func otherDevice(what string) error {
	return &flashkit.ProblemError{Field: what, Value: "of another backend", Reason: "must belong to the same one"}
}

func missing(what string) error {
	return &flashkit.ProblemError{Field: what, Value: "nil", Reason: "is missing"}
}
