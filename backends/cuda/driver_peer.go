//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import "unsafe"

func (h *hotCalls) peers(d *Driver) {
	d.MemcpyPeerAsync = func(to Pointer, toContext Context, from Pointer, fromContext Context, bytes int, s StreamHandle) error {
		f := h.frames.Get().(*frame)
		f.args = [11]uintptr{uintptr(to), uintptr(toContext), uintptr(from), uintptr(fromContext), uintptr(bytes), uintptr(s)}
		err := f.call(h.calls, &h.toPeer, 6)
		h.frames.Put(f)
		return err
	}
	d.Memcpy3DPeerAsync = func(to Pointer, toContext Context, toPitch int, from Pointer, fromContext Context, fromPitch, bytes, rows int, s StreamHandle) error {
		f := h.frames.Get().(*frame)
		f.copy = memcpy3DPeer{
			copySide{kind: memoryDevice, device: from, context: fromContext, pitch: fromPitch, rows: rows},
			copySide{kind: memoryDevice, device: to, context: toContext, pitch: toPitch, rows: rows}, bytes, rows, 1,
		}
		f.args = [11]uintptr{uintptr(unsafe.Pointer(&f.copy)), uintptr(s)}
		err := f.call(h.calls, &h.rowsToPeer, 2)
		h.frames.Put(f)
		return err
	}
}
