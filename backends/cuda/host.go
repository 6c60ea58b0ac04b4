package cuda

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// Host tensors stream through the device in chunks. Each chunk passes five stages in one staging
// buffer: packing, the copy to the device, the kernels, the copy back, and unpacking. Chunks in
// different buffers overlap. The division into chunks depends only on the problem and the tensors'
// shapes. So every run gives the same bits.

// A hostCall is a pass on host tensors, divided into units. Without features, a unit is one KV head
// of a batch entry, with its query heads. With features, a unit is a whole batch entry.
type hostCall struct {
	b        *Backend
	id       familyID
	call     *flashkit.Call
	perBatch int // units of a batch entry
	units    int
	chunk    int // units of a chunk

	next atomic.Int64          // first unit without a chunk
	err  atomic.Pointer[error] // the first error
}

func (b *Backend) runHost(ctx context.Context, id familyID, call *flashkit.Call) (err error) {
	c := &hostCall{b: b, id: id, call: call}
	first := c.cut()
	own, err := b.staging.take(ctx)
	if err != nil {
		return err
	}
	defer b.staging.put(own)
	var crew sync.WaitGroup
	for range min(ceilDiv(c.units, c.chunk), b.staging.most(first.bytes)) - 1 {
		if l, ok := b.staging.tryTake(); ok {
			crew.Go(func() {
				defer b.staging.put(l)
				c.work(ctx, l, c.take())
			})
		}
	}
	c.work(ctx, own, first)
	crew.Wait()
	if failed := c.err.Load(); failed != nil {
		err = *failed
	}
	if hasFeatures(&call.Problem) && own.bytes > 2*featureBytes { // other calls need less
		err = errors.Join(err, b.do(func() error { return own.shrink(b.drv) }))
	}
	return err
}

// cut chooses the unit and the number of units in a chunk, and returns the first chunk.
func (c *hostCall) cut() *chunk {
	p := &c.call.Problem
	dense := !hasFeatures(p)
	if c.perBatch, c.units = 1, p.Batch; dense {
		c.perBatch, c.units = p.KVHeads, p.Batch*p.KVHeads
	}
	x := newChunk(c.call, c.perBatch, 0, c.units)
	if dense {
		bytes := 0
		for i := range x.list {
			bytes += x.list[i].bytes
		}
		c.chunk = c.b.staging.chunk / max(1, bytes/max(1, c.units))
	} else {
		c.chunk = c.featureChunk()
	}
	if c.chunk = max(1, min(c.chunk, c.units)); c.chunk < c.units {
		x = newChunk(c.call, c.perBatch, 0, c.chunk)
	}
	c.next.Store(int64(c.chunk))
	return x
}

// featureChunk returns the number of batch entries in a chunk of a call with features. If an
// optional result, such as DSink, is a sum over the batch, one chunk has all entries.
func (c *hostCall) featureChunk() int {
	a := c.call.Args
	in, out, _ := hostBytes(c.call.Problem, c.call.Pass)
	for _, t := range [...]*flashkit.Tensor{&a.Bias, &a.Mask} {
		if s := t.Shape(); s[0] == c.units {
			in += float64(t.DType().Size()) * float64(s[0]) * float64(s[1]) * float64(s[2]) * float64(s[3])
		}
	}
	summed := c.call.Pass == flashkit.PassBackward && (!a.DSink.IsZero() || !a.DBias.IsZero() && a.DBias.Shape()[0] != c.units)
	return batchesOf(c.call, summed, in+out, c.b.staging.whole)
}

// batchesOf returns the number of batch entries in a chunk of at most limit bytes, for a call with
// features. It returns c.Batch if sequences differ in length, if the call uses dropout, or if a
// result is a sum over the batch.
func batchesOf(c *flashkit.Call, summed bool, bytes float64, limit int) int {
	if c.Ragged || c.Score.Dropout != 0 || summed { // dropout depends on the batch index
		return max(1, c.Batch)
	}
	return max(1, min(c.Batch, int(float64(limit)*float64(c.Batch)/max(1, bytes))))
}

// take returns the next chunk, or nil if no chunk is left.
func (c *hostCall) take() *chunk {
	first := int(c.next.Add(int64(c.chunk))) - c.chunk
	if first >= c.units {
		return nil
	}
	return newChunk(c.call, c.perBatch, first, min(c.chunk, c.units-first))
}

// work processes chunk x, and then further chunks, with one staging buffer. It ends if a chunk
// fails or no chunk is left.
func (c *hostCall) work(ctx context.Context, l *stagingBuffer, x *chunk) {
	for ; x != nil; x = c.take() {
		if err := c.run(ctx, l, x); err != nil {
			c.err.CompareAndSwap(nil, &err)
			c.next.Store(int64(c.units)) // no other chunk begins
			return
		}
	}
}

func (c *hostCall) run(ctx context.Context, l *stagingBuffer, x *chunk) error {
	if err := c.b.grow(l, max(x.bytes, granule)); err != nil {
		return err
	}
	x.move(l, flashkit.Input)
	if err := ctx.Err(); err != nil {
		return err
	}
	a := c.b.args.Get().(*arguments)
	defer c.b.args.Put(a)
	x.setArguments(a, l.device)
	if err := c.b.do(func() error { return c.pass(x, a, l) }); err != nil {
		return err
	}
	x.move(l, flashkit.Output)
	return nil
}

func (c *hostCall) pass(x *chunk, a *arguments, l *stagingBuffer) error {
	if x.inputs > 0 {
		if err := c.b.drv.MemcpyHtoDAsync(l.device, l.host, x.inputs, l.stream); err != nil {
			return err
		}
	}
	err := c.b.enqueue(c.id, x.p, a, l.stream)
	if n := x.bytes - x.outputs; err == nil && n > 0 {
		err = c.b.drv.MemcpyDtoHAsync(unsafe.Add(l.host, x.outputs), l.device+Pointer(x.outputs), n, l.stream)
	}
	return errors.Join(err, c.b.drv.StreamSynchronize(l.stream))
}
