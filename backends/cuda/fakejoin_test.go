package cuda

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// peerCalls fills in the calls for several devices, which share one memory in the fake.
func (f *fakeDriver) peerCalls() {
	f.DeviceCanAccessPeer = func(device, peer int) (bool, error) { return !f.apart, f.call("cuDeviceCanAccessPeer") }
	f.CtxEnablePeerAccess = func(Context) error { return f.inContext("cuCtxEnablePeerAccess") }
	f.MemcpyPeerAsync = func(to Pointer, toContext Context, from Pointer, fromContext Context, n int, s StreamHandle) error {
		if err := f.inContext("cuMemcpyPeerAsync"); err != nil {
			return err
		}
		f.drain(s)
		dst, ok := f.at(to)
		src, ok2 := f.at(from)
		f.mu.Lock()
		defer f.mu.Unlock()
		if !ok || !ok2 || n > len(dst) || n > len(src) || f.handles[uintptr(toContext)] != "context" || f.handles[uintptr(fromContext)] != "context" || f.handles[uintptr(s)] != "stream" {
			return f.fail("cuMemcpyPeerAsync", 1)
		}
		copy(dst[:n], src[:n])
		return nil
	}
	f.Memcpy3DPeerAsync = func(to Pointer, toContext Context, toPitch int, from Pointer, fromContext Context, fromPitch, n, rows int, s StreamHandle) error {
		if n > toPitch || n > fromPitch {
			return f.fail("cuMemcpy3DPeerAsync", 1)
		}
		for i := range rows {
			if err := f.MemcpyPeerAsync(to+Pointer(i*toPitch), toContext, from+Pointer(i*fromPitch), fromContext, n, s); err != nil {
				return err
			}
		}
		return nil
	}
}

// join computes the results of kernels/join.cu.
func (f *fakeDriver) join(name string, j *joinArgs, threads int) error {
	view := func(v view, dtype int32) *fakeView {
		m, _ := f.at(v.data)
		return &fakeView{memory: m, view: v, dtype: flashkit.DType(dtype)}
	}
	dst, x, y := view(j.dst, j.dstType), view(j.x, j.xType), view(j.y, j.yType)
	lse, part := view(j.lse, 0), view(j.partLSE, 0)
	for i := range min(int(j.count), threads/int(j.lanes)) {
		r, h, b := i%int(j.rows), i/int(j.rows)%int(j.heads), i/int(j.rows)/int(j.heads)
		mine, theirs := 1.0, 1.0
		if name == "join_merge" {
			mine, theirs = f.weigh(lse, part, b, h, r)
		}
		for c := range int(j.dim) {
			sum := 0.0
			if j.x.data == 0 && j.y.data == 0 {
				sum = float64(j.value)
			}
			if j.x.data != 0 && mine != 0 {
				sum += mine * x.get(b, h, r, c)
			}
			if j.y.data != 0 && theirs != 0 {
				sum += theirs * y.get(b, h, r, c)
			}
			dst.set(b, h, r, c, sum)
		}
	}
	return nil
}

func (f *fakeDriver) weigh(lse, part *fakeView, b, h, r int) (mine, theirs float64) {
	x, y := lse.get(b, h, r, 0), part.get(b, h, r, 0)
	top := max(x, y)
	if math.IsInf(top, -1) {
		return 0, 0
	}
	mine, theirs = math.Exp(x-top), math.Exp(y-top)
	lse.set(b, h, r, 0, top+math.Log(mine+theirs))
	return mine / (mine + theirs), theirs / (mine + theirs)
}
