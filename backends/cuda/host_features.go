package cuda

import (
	"context"
	"errors"
	"strings"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// Host tensors of a call with features go through the device in chunks of some batches,
// one after the other, or as one where sequences differ or something is summed over
// batches. A chunk is what is read, what is read and written, what is written, so that each
// way is one copy. What repeats is copied once, of packed tensors the rows of sequences
// alone, of pools of pages those that sequences have.

// A staged tensor is an argument, and where it lies in a staging buffer.
type staged struct {
	arg    *flashkit.Argument
	t      flashkit.Tensor
	role   flashkit.Role
	shape  [4]int // of what is copied
	batch  int    // the first batch of it,
	from   int    // and row
	pages  []int32
	row    int // bytes from one row to the next
	offset int
	bytes  int
}

// A stagedCall is a call with features on host tensors.
type stagedCall struct {
	c             *flashkit.Call
	p             flashkit.Problem // of the chunk
	first         int              // batch of it
	list          []staged
	pages         []int32 // the pages that sequences have, in their order
	table         []int32 // where they lie in the copy
	q, kv         [2]int  // rows and keys that are copied of packed tensors: from, to
	inputs, bytes int     // inputs come first,
	outputsFrom   int     // outputs last; some are both
}

func (b *Backend) runHostFeatures(ctx context.Context, id stemID, call *flashkit.Call) error {
	l, err := b.staging.take(ctx)
	if err != nil {
		return err
	}
	defer b.staging.put(l)
	for n, first := batchesOf(call, b.staging.whole), 0; ; first += n {
		x := &stagedCall{c: call, p: call.Problem, first: first}
		x.p.Batch = min(n, call.Batch-first)
		if err := x.run(ctx, b, id, l); err != nil || first+n >= call.Batch {
			if l.bytes > 2*featureBytes { // no call but this one needs as much
				err = errors.Join(err, b.do(func() error { return l.shrink(b.drv) }))
			}
			return err
		}
	}
}

// batchesOf returns how many batches a chunk has that takes so many bytes. It depends on the
// problem and the shapes, and not on what optional results are wanted but where these are
// sums over batches.
func batchesOf(c *flashkit.Call, limit int) int {
	a := c.Args
	summed := c.Pass == flashkit.PassBackward && (!a.DSink.IsZero() || !a.DBias.IsZero() && a.DBias.Shape()[0] != c.Batch)
	if c.Ragged || c.Score.Dropout != 0 || summed { // dropout is by the number of the batch
		return max(1, c.Batch)
	}
	in, out, _ := hostBytes(c.Problem, c.Pass)
	for _, t := range [...]*flashkit.Tensor{&a.Bias, &a.Mask} {
		if s := t.Shape(); s[0] == c.Batch {
			in += float64(t.DType().Size()) * float64(s[0]) * float64(s[1]) * float64(s[2]) * float64(s[3])
		}
	}
	return max(1, min(c.Batch, int(float64(limit)*float64(c.Batch)/max(1, in+out))))
}

// run takes a chunk through a staging buffer.
func (x *stagedCall) run(ctx context.Context, b *Backend, id stemID, l *stagingBuffer) error {
	x.lay()
	if err := b.grow(l, max(x.bytes, granule)); err != nil {
		return err
	}
	for i := range x.list {
		if s := &x.list[i]; s.role&flashkit.Input != 0 {
			s.move(l.host, true)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	a := b.args.Get().(*arguments)
	defer b.args.Put(a)
	x.describe(a, l.device)
	if err := b.do(func() error { return x.pass(b, id, a, l) }); err != nil {
		return err
	}
	for i := range x.list {
		if s := &x.list[i]; s.role&flashkit.Output != 0 {
			s.move(l.host, false)
		}
	}
	return nil
}

// pass copies the inputs to the device, computes, and copies the outputs back.
func (x *stagedCall) pass(b *Backend, id stemID, a *arguments, l *stagingBuffer) error {
	if x.inputs > 0 {
		if err := b.drv.MemcpyHtoDAsync(l.device, l.host, x.inputs, l.stream); err != nil {
			return err
		}
	}
	err := b.enqueue(id, x.p, a, l.stream)
	if n := x.bytes - x.outputsFrom; err == nil && n > 0 {
		err = b.drv.MemcpyDtoHAsync(unsafe.Add(l.host, x.outputsFrom), l.device+Pointer(x.outputsFrom), n, l.stream)
	}
	return errors.Join(err, b.drv.StreamSynchronize(l.stream))
}

// lay decides where each tensor lies.
func (x *stagedCall) lay() {
	p, seqs := &x.c.Problem, x.c.Args.Seqs
	if seqs != nil {
		x.findPages(p, seqs)
		if s := seqs.QStarts; s != nil {
			x.q = [2]int{int(s[0]), int(s[len(s)-1])}
		}
		if s := seqs.KVStarts; s != nil {
			x.kv = [2]int{int(s[0]), int(s[len(s)-1])}
		}
	}
	for _, role := range [...]flashkit.Role{flashkit.Input, flashkit.Input | flashkit.Output, flashkit.Output} {
		if role == flashkit.Input|flashkit.Output {
			x.outputsFrom = x.bytes
		}
		for i := range allArguments {
			a := &allArguments[i]
			if t := a.Of(x.c.Args); a.Role(p, x.c.Pass)&^flashkit.Optional == role && !t.IsZero() {
				x.add(a, *t, role)
			}
		}
		if role&flashkit.Input != 0 {
			x.inputs = x.bytes
		}
	}
}

// findPages lists the pages that sequences have, and makes a table of their copies.
func (x *stagedCall) findPages(p *flashkit.Problem, seqs *flashkit.Sequences) {
	if p.Page == 0 || p.Batch == 0 {
		return
	}
	width := len(seqs.Pages) / p.Batch
	x.table = make([]int32, len(seqs.Pages))
	for b, n := range seqs.KVLens {
		for i := range ceilDiv(int(n), p.Page) {
			x.table[b*width+i] = int32(len(x.pages))
			x.pages = append(x.pages, seqs.Pages[b*width+i])
		}
	}
}

// add places a tensor behind the others.
func (x *stagedCall) add(a *flashkit.Argument, t flashkit.Tensor, role flashkit.Role) {
	s := staged{arg: a, t: t, role: role, shape: t.Shape(), offset: x.bytes}
	seqs, size := x.c.Args.Seqs, t.DType().Size()
	switch a.Name {
	case "Q", "O", "LSE", "DO", "DLSE", "DQ":
		if seqs != nil && seqs.QStarts != nil {
			s.from, s.shape[2] = x.q[0], x.q[1]-x.q[0]
		}
	case "K", "V", "DK", "DV":
		switch {
		case x.c.Page > 0:
			s.pages, s.shape[0] = x.pages, len(x.pages)
		case seqs != nil && seqs.KVStarts != nil:
			s.from, s.shape[2] = x.kv[0], x.kv[1]-x.kv[0]
		}
	}
	if t.Shape()[0] == x.c.Batch && x.c.Batch > x.p.Batch {
		s.shape[0], s.batch = x.p.Batch, x.first
	}
	for d, stride := range t.Strides() {
		if role == flashkit.Input && stride == 0 && s.shape[d] > 1 && s.pages == nil {
			s.shape[d] = 1 // it repeats
		}
	}
	s.row = s.shape[3] * size
	if s.shape[3] > 1 || size < 4 {
		s.row = ceilDiv(s.row, rowAlignment) * rowAlignment
	}
	s.bytes = s.shape[0] * s.shape[1] * s.shape[2] * s.row
	x.bytes += ceilDiv(s.bytes, granule) * granule
	x.list = append(x.list, s)
}

// move copies row by row between the tensor and the staging buffer.
func (s *staged) move(host unsafe.Pointer, in bool) {
	if s.bytes == 0 {
		return
	}
	size := s.t.DType().Size()
	buffer, memory := unsafe.Slice((*byte)(unsafe.Add(host, s.offset)), s.bytes), hostBytesOf(&s.t)
	n := s.shape[3] * size
	for b := range s.shape[0] {
		batch := s.batch + b
		if s.pages != nil {
			batch = int(s.pages[b])
		}
		for h := range s.shape[1] {
			for r := range s.shape[2] {
				row := memory[s.t.Offset(batch, h, s.from+r)*size:][:n]
				if in {
					copy(buffer, row)
				} else {
					copy(row, buffer)
				}
				buffer = buffer[s.row:]
			}
		}
	}
}

// hostBytesOf returns the memory of a tensor on the host.
func hostBytesOf(t *flashkit.Tensor) []byte {
	switch n := t.Len() * t.DType().Size(); t.DType() {
	case flashkit.Float32:
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(t.Float32s()))), n)
	case flashkit.Bool:
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(t.Bools()))), n)
	default:
		return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(t.Uint16s()))), n)
	}
}

// describe sets the argument block for the copies on the device.
func (x *stagedCall) describe(a *arguments, device Pointer) {
	a.params.describe(x.p)
	a.setFeatures(x.c)
	if a.dbiasShape[0] > 1 {
		a.dbiasShape[0] = int32(x.p.Batch)
	}
	for i := range x.list {
		s := &x.list[i]
		if v := a.view(s.arg.Name); v != nil {
			s.place(v, device)
		}
		if n := strings.Index("QKVO", s.arg.Name); n >= 0 && len(s.arg.Name) == 1 {
			a.shapes[n] = s.whole(x.p.Batch)
		}
	}
	a.features.align(&x.c.Problem, x.c.Args.Bias.DType().Size())
	a.join()
	at := 0
	for i, n := range a.sides { // in the order of setSequences
		list := a.ints[at:][:n]
		switch i {
		case 1, 3:
			for j := n - 1; j >= 0; j-- {
				list[j] -= list[0]
			}
		case 4:
			copy(list, x.table)
		}
		at += n
	}
}

// whole returns the shape of the copy, with all that repeats.
func (s *staged) whole(batch int) [4]int {
	shape := s.shape
	for d, stride := range s.t.Strides() {
		if shape[d] != 1 || stride != 0 || s.pages != nil {
			continue
		}
		if shape[d] = s.t.Shape()[d]; d == 0 && s.t.Shape()[0] > 1 {
			shape[d] = batch
		}
	}
	return shape
}

// place makes v the copy of the tensor on the device.
func (s *staged) place(v *view, device Pointer) {
	step := int64(s.row / s.t.DType().Size())
	*v = view{data: device + Pointer(s.offset), row: step, head: step * int64(s.shape[2]), batch: step * int64(s.shape[2]) * int64(s.shape[1])}
	for d, stride := range [...]*int64{&v.batch, &v.head, &v.row} {
		if s.shape[d] <= 1 {
			*stride = 0
		}
	}
}

// view returns where the argument block has a tensor.
func (a *arguments) view(name string) *view {
	for i := range denseArguments {
		if denseArguments[i].Name == name {
			return &a.views[i]
		}
	}
	switch name {
	case "Bias":
		return &a.bias
	case "DBias":
		return &a.dbias
	case "Mask":
		return &a.mask
	case "Slopes":
		return &a.slopes
	case "Sink":
		return &a.sink
	case "DSink":
		return &a.dsink
	}
	return nil
}
