package cuda

import (
	"context"
	"errors"
	"runtime"
	"unsafe"
)

// A stagingBuffer is a stream with pinned host memory, and device memory of the same size.
type stagingBuffer struct {
	stream StreamHandle
	host   unsafe.Pointer
	device Pointer
	bytes  int
}

// grow creates the stream if there is none, and enlarges the memory to at least the given number of
// bytes.
func (l *stagingBuffer) grow(d *Driver, bytes int) (err error) {
	if l.stream == 0 {
		if l.stream, err = d.StreamCreate(); err != nil {
			return err
		}
	}
	if bytes <= l.bytes {
		return nil
	}
	if err := l.shrink(d); err != nil {
		return err
	}
	if l.device, err = d.MemAlloc(bytes); err != nil {
		l.device = 0
		return err
	}
	if l.host, err = d.MemHostAlloc(bytes); err != nil {
		l.host = nil
		return errors.Join(err, l.shrink(d))
	}
	l.bytes = bytes
	return d.MemsetD32Async(l.device, 0, bytes/4, l.stream) // gaps between arrays are copied too
}

func (l *stagingBuffer) shrink(d *Driver) (err error) {
	if l.device != 0 {
		err = d.MemFree(l.device)
	}
	if l.host != nil {
		err = errors.Join(err, d.MemFreeHost(l.host))
	}
	*l = stagingBuffer{stream: l.stream}
	return err
}

func (l *stagingBuffer) close(d *Driver) error {
	err := l.shrink(d)
	if l.stream != 0 {
		err = errors.Join(err, d.StreamDestroy(l.stream))
	}
	return err
}

// staging has the buffers that the calls of a backend share.
type staging struct {
	free  chan *stagingBuffer
	chunk int // chunkBytes, unless a test sets another number
	whole int // featureBytes, unless a test sets another number
}

// stagingBytes is the maximum pinned memory of one call's buffers, unless a single unit (see
// hostCall) needs more.
const stagingBytes = 512 << 20

// chunkBytes is the maximum size of a chunk of several units (see hostCall) in a call without
// features, inputs and outputs together. Copies of this size reach the full rate of the bus. Calls
// whose copies take long have several chunks, which overlap.
const chunkBytes = 2 << 20

// featureBytes is the maximum size of a chunk of several batch entries in a call with features,
// unless one chunk must have all entries (see batchesOf).
const featureBytes = 128 << 20

func newStaging() staging {
	n := max(2, min(12, runtime.GOMAXPROCS(0)))
	l := staging{make(chan *stagingBuffer, n), chunkBytes, featureBytes}
	for range n {
		l.free <- new(stagingBuffer)
	}
	return l
}

// most returns the maximum number of staging buffers for a call, if each has the given number of
// bytes.
func (l *staging) most(bytes int) int { return max(1, min(cap(l.free), stagingBytes/max(1, bytes))) }

func (l *staging) take(ctx context.Context) (*stagingBuffer, error) {
	select {
	case x := <-l.free:
		return x, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *staging) tryTake() (*stagingBuffer, bool) {
	select {
	case x := <-l.free:
		return x, true
	default:
		return nil, false
	}
}

func (l *staging) put(x *stagingBuffer) { l.free <- x }

func (l *staging) close(d *Driver) (err error) {
	for {
		x, ok := l.tryTake()
		if !ok {
			return err
		}
		err = errors.Join(err, x.close(d))
	}
}

// grow grows a staging buffer, and fills it with NaN in a poisoned backend.
func (b *Backend) grow(l *stagingBuffer, bytes int) error {
	return b.do(func() error {
		if err := l.grow(b.drv, bytes); err != nil || !b.poison.Load() {
			return err
		}
		for i := range unsafe.Slice((*uint32)(l.host), bytes/4) {
			unsafe.Slice((*uint32)(l.host), bytes/4)[i] = poisonBits
		}
		return b.drv.MemsetD32Async(l.device, poisonBits, bytes/4, l.stream)
	})
}
