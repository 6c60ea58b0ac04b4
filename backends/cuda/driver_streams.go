//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import "unsafe"

func (c *calls) streams(d *Driver) {
	d.StreamCreate = func() (StreamHandle, error) {
		s := new(StreamHandle)
		err := c.call(&c.streamNew, uintptr(unsafe.Pointer(s)), streamNonBlocking)
		return *s, err
	}
	d.StreamCreatePriority = func(priority int) (StreamHandle, error) {
		s := new(StreamHandle)
		err := c.call(&c.streamRanked, uintptr(unsafe.Pointer(s)), streamNonBlocking, uintptr(priority))
		return *s, err
	}
	d.StreamDestroy = func(s StreamHandle) error { return c.call(&c.streamEnd, uintptr(s)) }
	d.EventCreate = func() (EventHandle, error) {
		e := new(EventHandle)
		err := c.call(&c.eventNew, uintptr(unsafe.Pointer(e)), 0)
		return *e, err
	}
	d.EventDestroy = func(e EventHandle) error { return c.call(&c.eventEnd, uintptr(e)) }
	d.EventElapsedTime = func(from, to EventHandle) (float32, error) {
		ms := new(float32)
		err := c.call(&c.eventElapsed, uintptr(unsafe.Pointer(ms)), uintptr(from), uintptr(to))
		return *ms, err
	}
}
