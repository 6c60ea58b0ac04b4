package cuda

import (
	"errors"
	"strconv"
	"time"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/hostmem"
)

// A Stream is a queue of work on the device. Work in one stream runs in order; streams run
// concurrently. Several goroutines may call a Stream's methods at once.
type Stream struct {
	b       *Backend
	handle  StreamHandle
	foreign bool
	seqs    seqCache
}

// NewStream returns a new stream that does not wait for the default stream. Stream.Close frees it.
func (b *Backend) NewStream() (*Stream, error) { return b.newStream(b.drv.StreamCreate) }

// NewPriorityStream returns a new stream of the given priority; NewStream's streams have priority
// 0. Blocks in streams with lower numbers take free multiprocessors first, even if other blocks
// came earlier. Running blocks are not interrupted. Numbers are clamped to the driver's range, -5
// to 0 on an H100.
func (b *Backend) NewPriorityStream(priority int) (*Stream, error) {
	if b.drv.StreamCreatePriority == nil {
		return b.NewStream()
	}
	return b.newStream(func() (StreamHandle, error) { return b.drv.StreamCreatePriority(priority) })
}

func (b *Backend) newStream(create func() (StreamHandle, error)) (*Stream, error) {
	s := &Stream{b: b}
	err := b.do(func() (err error) {
		s.handle, err = create()
		return err
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// WrapStream returns a Stream for a stream of the program or another library, in the device's
// primary context. Handle 0 is the default stream. The method Close leaves the wrapped stream open.
func (b *Backend) WrapStream(handle StreamHandle) *Stream {
	return &Stream{b: b, handle: handle, foreign: true}
}

// Handle returns the driver's handle of the stream for other libraries, which must not destroy the
// stream.
func (s *Stream) Handle() StreamHandle { return s.handle }

// Sync waits until the work in the stream is done. If a kernel or copy failed, Sync returns the
// error.
func (s *Stream) Sync() error {
	return s.b.do(func() error { return s.b.drv.StreamSynchronize(s.handle) })
}

// Wait makes later work in s wait for e, which may be an event of another device.
func (s *Stream) Wait(e *Event) error {
	return s.b.do(func() error { return s.b.drv.StreamWaitEvent(s.handle, e.handle) })
}

// Record places e after the work that is in the stream so far. If e had a place already, the new
// place replaces it.
func (s *Stream) Record(e *Event) error {
	if e.b != s.b {
		return otherDevice("Event")
	}
	return s.b.do(func() error { return s.b.drv.EventRecord(e.handle, s.handle) })
}

// Close frees the stream without waiting. Work in the stream still runs to its end.
func (s *Stream) Close() error {
	if s.foreign {
		return nil
	}
	return s.b.do(s.close)
}

// close frees the stream's memory, then the stream.
func (s *Stream) close() error {
	s.seqs.mu.Lock()
	defer s.seqs.mu.Unlock()
	return errors.Join(s.seqs.free(s.b.drv, s.handle), s.b.drv.StreamDestroy(s.handle))
}

// An Event is a point in a stream. Other streams can wait for the event. Two events measure the
// device's time between two points.
type Event struct {
	b      *Backend
	handle EventHandle
}

// NewEvent returns a new event that is not yet in any stream; Stream.Record places it. Event.Close
// frees it.
func (b *Backend) NewEvent() (*Event, error) {
	e := &Event{b: b}
	err := b.do(func() (err error) {
		e.handle, err = b.drv.EventCreate()
		return err
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Since returns the time on the device from the event `from` to the event e. The work before both
// events must be done: call Event.Sync first.
func (e *Event) Since(from *Event) (time.Duration, error) {
	if e.b != from.b {
		return 0, otherDevice("Event")
	}
	var ms float32
	err := e.b.do(func() (err error) {
		ms, err = e.b.drv.EventElapsedTime(from.handle, e.handle)
		return err
	})
	return time.Duration(float64(ms) * 1e6), err
}

// Sync waits until the work before the event is done.
func (e *Event) Sync() error {
	return e.b.do(func() error { return e.b.drv.EventSynchronize(e.handle) })
}

// Close frees the event.
func (e *Event) Close() error {
	return e.b.do(func() error { return e.b.drv.EventDestroy(e.handle) })
}

// Upload copies src to the buffer, from byte `from` on. It returns when src may be used again.
func Upload[T float32 | ~int32 | ~uint16 | ~int8 | ~bool](s *Stream, to *Buffer, from int, src []T) error {
	return s.copy(to, from, unsafe.Pointer(unsafe.SliceData(src)), len(src)*int(unsafe.Sizeof(*new(T))), true)
}

// Download copies the buffer, from byte `from` on, to dst. It waits for the work in the stream and
// returns when dst is complete.
func Download[T float32 | ~int32 | ~uint16 | ~int8 | ~bool](s *Stream, dst []T, of *Buffer, from int) error {
	return s.copy(of, from, unsafe.Pointer(unsafe.SliceData(dst)), len(dst)*int(unsafe.Sizeof(*new(T))), false)
}

// UploadTensor copies a host tensor's memory, Len elements with the gaps between rows, to the
// beginning of the buffer. It returns when the tensor may be used again.
func UploadTensor(s *Stream, to *Buffer, t flashkit.Tensor) error {
	return s.copyTensor(to, &t, true)
}

// DownloadTensor copies the beginning of the buffer to a host tensor's memory, in UploadTensor's
// layout. It waits for the work in the stream and returns when the tensor is complete.
func DownloadTensor(s *Stream, t flashkit.Tensor, of *Buffer) error {
	return s.copyTensor(of, &t, false)
}

func (s *Stream) copyTensor(m *Buffer, t *flashkit.Tensor, upload bool) error {
	if t.Owner() != nil {
		return &flashkit.ProblemError{Field: "Tensor", Value: "on a device", Reason: "must be in host memory"}
	}
	host := hostmem.Bytes(t)
	return s.copy(m, 0, unsafe.Pointer(unsafe.SliceData(host)), len(host), upload)
}

func (s *Stream) copy(m *Buffer, from int, host unsafe.Pointer, n int, upload bool) error {
	switch {
	case s == nil:
		return missing("Stream")
	case m == nil:
		return missing("Buffer")
	case m.b != s.b:
		return otherDevice("Buffer")
	case m.freed.Load():
		return &flashkit.ProblemError{Field: "Buffer", Value: "freed", Reason: "the buffer is freed"}
	case from < 0 || n > m.bytes-from:
		return &flashkit.ProblemError{Field: "Buffer.bytes", Value: strconv.Itoa(m.bytes), Reason: "is too small for " + strconv.Itoa(n) + " bytes at offset " + strconv.Itoa(from)}
	case n == 0:
		return nil
	}
	return s.b.do(func() error {
		at := m.address + Pointer(from)
		if upload {
			return errors.Join(s.b.drv.MemcpyHtoDAsync(at, host, n, s.handle), s.b.drv.StreamSynchronize(s.handle))
		}
		return errors.Join(s.b.drv.MemcpyDtoHAsync(host, at, n, s.handle), s.b.drv.StreamSynchronize(s.handle))
	})
}
