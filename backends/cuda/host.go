package cuda

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// Host tensors stream through the device. The work is cut into units, one KV
// head of one batch with the query heads of its group; a chunk is some units. A
// staging buffer takes a chunk through packing into pinned memory, the copy to the device,
// the kernels, the copy back and unpacking, in a stream of its own. Several buffers
// overlap all of it. Chunks depend on the problem alone, so results do too.

// chunkBytes is what a chunk carries both ways, if its units are smaller: enough
// for the bus, and little beside a problem whose copies matter.
const chunkBytes = 2 << 20

// featureBytes is what a chunk of a call with features carries, if its batches are smaller.
const featureBytes = 128 << 20

// rowAlignment is what the kernels' fast copies want of a row's address, in bytes.
const rowAlignment = 16

// An array is a tensor argument, and where its units lie in a staging buffer.
type array struct {
	t      flashkit.Tensor
	step   int // elements from one row to the next in a staging buffer
	heads  int // of a unit
	output bool
	bytes  int // of a unit
	offset int // of the chunk's first unit
}

// A hostCall is a pass on host tensors.
type hostCall struct {
	b      *Backend
	stem   stemID
	p      flashkit.Problem // the whole one
	chunk  int              // units
	arrays []array          // in the order of params.views
	inputs int              // bytes of a chunk's inputs, which come first
	bytes  int              // of a chunk

	next atomic.Int64 // unit
	mu   sync.Mutex
	err  error // the first
}

func (b *Backend) runHost(ctx context.Context, id stemID, call *flashkit.Call) error {
	if featured(&call.Problem) {
		return b.runHostFeatures(ctx, id, call)
	}
	p, arrays := call.Problem, arraysOf(call)
	units := p.Batch * p.KVHeads
	if units == 0 {
		return nil
	}
	c := &hostCall{b: b, stem: id, p: p, arrays: arrays}
	c.lay(units)
	own, err := b.staging.take(ctx)
	if err != nil {
		return err
	}
	var crew sync.WaitGroup
	for range min(ceilDiv(units, c.chunk), b.staging.most(c.bytes)) - 1 {
		if l, ok := b.staging.tryTake(); ok {
			crew.Go(func() { c.work(ctx, l) })
		}
	}
	c.work(ctx, own)
	crew.Wait()
	return c.err
}

// arraysOf returns the arguments that a dense call may have, in the order of
// params.views.
func arraysOf(c *flashkit.Call) (list []array) {
	for i := range denseArguments {
		a := &denseArguments[i]
		if role := a.Role(&c.Problem, c.Pass); role != 0 {
			list = append(list, array{t: *a.Of(c.Args), output: role&flashkit.Output != 0})
		}
	}
	return list
}

// lay decides how many units a chunk has and where each array lies in it: the
// inputs, then the outputs, so that each way is one copy.
func (c *hostCall) lay(units int) {
	unit := 0
	for i := range c.arrays {
		a := &c.arrays[i]
		if s := a.t.Shape(); !a.t.IsZero() {
			size := a.t.DType().Size()
			a.heads, a.step = s[1]/c.p.KVHeads, s[3]
			if s[3] > 1 || size < 4 { // rows that begin at multiples of 16 bytes are faster, or needed; LSE has no rows
				a.step = ceilDiv(s[3]*size, rowAlignment) * rowAlignment / size
			}
			a.bytes = a.heads * s[2] * a.step * size
		}
		unit += a.bytes
	}
	c.chunk = max(1, min(units, c.b.staging.chunk/max(1, unit)))
	for i := range c.arrays {
		a := &c.arrays[i]
		if a.output && c.inputs == 0 {
			c.inputs = c.bytes
		}
		a.offset = c.bytes
		c.bytes += ceilDiv(a.bytes*c.chunk, granule) * granule
	}
}

// work takes chunks until none is left or something has failed, and gives the
// buffer back.
func (c *hostCall) work(ctx context.Context, l *stagingBuffer) {
	defer c.b.staging.put(l)
	units := c.p.Batch * c.p.KVHeads
	for {
		first := int(c.next.Add(int64(c.chunk))) - c.chunk
		if first >= units {
			return
		}
		err := ctx.Err()
		if err == nil {
			err = c.do(l, first, min(c.chunk, units-first))
		}
		if err != nil {
			c.stop(err)
			return
		}
	}
}

// stop notes the first error and lets no further chunk begin.
func (c *hostCall) stop(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.next.Store(int64(c.p.Batch * c.p.KVHeads))
}

// do computes n units from the first on.
func (c *hostCall) do(l *stagingBuffer, first, n int) error {
	drv := c.b.drv
	if err := c.b.grow(l, c.bytes); err != nil {
		return err
	}
	for i := range c.arrays {
		if a := &c.arrays[i]; !a.output {
			c.move(a, l, first, n)
		}
	}
	p := c.p
	p.Batch, p.Heads, p.KVHeads = n, p.Heads/p.KVHeads, 1
	a := c.b.args.Get().(*arguments)
	defer c.b.args.Put(a)
	a.describe(p)
	a.featured = false
	for i := range c.arrays {
		c.arrays[i].place(&a.views[i], l.device)
	}
	err := c.b.do(func() error {
		if err := drv.MemcpyHtoDAsync(l.device, l.host, c.inputs, l.stream); err != nil {
			return err
		}
		if err := c.b.enqueue(c.stem, p, a, l.stream); err != nil {
			return errors.Join(err, drv.StreamSynchronize(l.stream))
		}
		return errors.Join(
			drv.MemcpyDtoHAsync(unsafe.Add(l.host, c.inputs), l.device+Pointer(c.inputs), c.bytes-c.inputs, l.stream),
			drv.StreamSynchronize(l.stream),
		)
	})
	if err != nil {
		return err
	}
	for i := range c.arrays {
		if a := &c.arrays[i]; a.output {
			c.move(a, l, first, n)
		}
	}
	return nil
}

// place makes v the array's part of a chunk that begins at base.
func (a *array) place(v *view, base Pointer) {
	*v = view{}
	if a.t.IsZero() {
		return
	}
	head := a.t.Shape()[2] * a.step
	*v = view{data: base + Pointer(a.offset), batch: int64(a.heads * head), head: int64(head), row: int64(a.step)}
}

// move copies an array's part of n units between the tensor and the staging buffer.
func (c *hostCall) move(a *array, l *stagingBuffer, first, n int) {
	if a.bytes == 0 {
		return
	}
	if a.t.DType() == flashkit.Float32 {
		moveRows(a, unsafe.Slice((*float32)(unsafe.Add(l.host, a.offset)), a.bytes/4*n), a.t.Float32s(), c.p.KVHeads, first)
	} else {
		moveRows(a, unsafe.Slice((*uint16)(unsafe.Add(l.host, a.offset)), a.bytes/2*n), a.t.Uint16s(), c.p.KVHeads, first)
	}
}

// moveRows copies row by row, or head by head where rows are dense on both sides,
// between the packed chunk and the tensor's memory. Of what it packs the caches keep
// nothing, where they need not: the device's copies are slower otherwise.
func moveRows[T float32 | uint16](a *array, packed, memory []T, kvHeads, first int) {
	rows, dim, step := a.t.Shape()[2], a.t.Shape()[3], a.step
	if step == dim && (a.t.Strides()[2] == dim || rows == 1) {
		rows, dim, step = 1, rows*dim, rows*dim
	}
	bytes := dim * a.t.DType().Size()
	uncached := !a.output && bytes%rowAlignment == 0 && uintptr(unsafe.Pointer(unsafe.SliceData(packed)))%rowAlignment == 0
	for i := 0; len(packed) > 0; i++ {
		unit, head := first+i/(a.heads*rows), i/rows%a.heads
		at := a.t.Offset(unit/kvHeads, unit%kvHeads*a.heads+head, i%rows)
		switch row := memory[at : at+dim]; {
		case a.output:
			copy(row, packed)
		case uncached:
			copyUncached(unsafe.Pointer(unsafe.SliceData(packed)), unsafe.Pointer(unsafe.SliceData(row)), bytes)
		default:
			copy(packed, row)
		}
		packed = packed[step:]
	}
	storeFence()
}
