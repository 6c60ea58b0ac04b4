package cuda

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/hostmem"
)

// A chunk is a range of a call's units in a staging buffer. The chunk's tensors are sorted by role:
// only input, both input and output, only output. All inputs are therefore contiguous, and so are
// all outputs: one copy moves each group. In a call with features, an input is copied only once
// along a broadcast dimension. Of packed tensors only rows that belong to sequences are copied, and
// of page pools only pages that the page table lists.
type chunk struct {
	call     *flashkit.Call
	perBatch int // units of a batch entry

	p       flashkit.Problem
	first   int // first unit
	list    []staged
	pages   []int32 // pages of the sequences, in the order of the sequences
	table   []int32 // page table of the copy
	inputs  int     // end of the inputs, in bytes
	outputs int     // begin of the outputs, in bytes
	bytes   int
}

// A staged tensor is an argument and its location in a staging buffer.
type staged struct {
	arg    int // index in allArguments
	t      *flashkit.Tensor
	role   flashkit.Role
	shape  [4]int  // shape of the copy
	whole  [4]int  // shape, before broadcast dimensions are reduced to length 1
	first  int     // first unit
	from   int     // first row
	pages  []int32 // pages to copy, in place of a range of units
	row    int     // bytes from one row to the next
	offset int
	bytes  int
}

// newChunk returns the chunk of n units that begins with unit `first`, and places the chunk's
// tensors in the staging buffer.
func newChunk(call *flashkit.Call, perBatch, first, n int) *chunk {
	x := &chunk{call: call, perBatch: perBatch, p: call.Problem, first: first, list: make([]staged, 0, len(allArguments))}
	x.p.Batch, x.p.Heads, x.p.KVHeads = n, call.Heads/perBatch, call.KVHeads/perBatch
	x.findPages()
	for _, role := range [...]flashkit.Role{flashkit.Input, flashkit.Input | flashkit.Output, flashkit.Output} {
		if role == flashkit.Input|flashkit.Output {
			x.outputs = x.bytes
		}
		for i := range allArguments {
			if t := allArguments[i].Of(call.Args); allArguments[i].Role(&call.Problem, call.Pass)&^flashkit.Optional == role && !t.IsZero() {
				x.add(i, t, role)
			}
		}
		if role&flashkit.Input != 0 {
			x.inputs = x.bytes
		}
	}
	return x
}

// findPages lists the pages that the sequences use. It also makes a page table with the positions
// of these pages in the staging buffer.
func (x *chunk) findPages() {
	seqs := x.call.Args.Seqs
	if x.p.Page == 0 || x.p.Batch == 0 {
		return
	}
	width := len(seqs.Pages) / x.p.Batch
	x.table = make([]int32, len(seqs.Pages))
	for b, n := range seqs.KVLens {
		for i := range ceilDiv(int(n), x.p.Page) {
			x.table[b*width+i] = int32(len(x.pages))
			x.pages = append(x.pages, seqs.Pages[b*width+i])
		}
	}
}

// add places a tensor after the chunk's earlier tensors in the staging buffer.
func (x *chunk) add(arg int, t *flashkit.Tensor, role flashkit.Role) {
	s := staged{arg: arg, t: t, role: role, shape: t.Shape(), offset: x.bytes}
	seqs, size := x.call.Args.Seqs, t.DType().Size()
	if s.shape[0] == x.call.Batch {
		s.shape[0], s.first = x.p.Batch, x.first
	}
	s.shape[1] /= x.perBatch
	switch allArguments[arg].Name {
	case "Q", "O", "LSE", "RowMax", "DO", "DLSE", "DQ":
		if seqs != nil && seqs.QStarts != nil {
			s.from, s.shape[2] = packedRows(seqs.QStarts)
		}
	case "K", "V", "KScale", "VScale", "DK", "DV":
		switch {
		case x.p.Page > 0:
			s.pages, s.shape[0] = x.pages, len(x.pages)
		case seqs != nil && seqs.KVStarts != nil:
			s.from, s.shape[2] = packedRows(seqs.KVStarts)
		}
	}
	s.whole = s.shape
	for d, stride := range t.Strides() {
		if role == flashkit.Input && stride == 0 && s.shape[d] > 1 && s.pages == nil && hasFeatures(&x.p) {
			s.shape[d] = 1
		}
	}
	s.row = s.shape[3] * size
	if s.shape[3] > 1 || size < 4 { // aligned rows are faster or required, except in LSE, which has one column
		s.row = ceilDiv(s.row, rowAlignment) * rowAlignment
	}
	s.bytes = s.shape[0] * s.shape[1] * s.shape[2] * s.row
	x.bytes += ceilDiv(s.bytes, granule) * granule
	x.list = append(x.list, s)
}

// place makes v a view of the tensor's copy in the staging buffer's device memory.
func (s *staged) place(v *view, device Pointer) {
	step := int64(s.row / s.t.DType().Size())
	*v = view{data: device + Pointer(s.offset), row: step, head: step * int64(s.shape[2]), batch: step * int64(s.shape[2]) * int64(s.shape[1])}
	v.dropStrides(s.shape)
}

// move copies the call's inputs to the staging buffer, or the outputs back to the caller's memory;
// role selects inputs or outputs.
func (x *chunk) move(l *stagingBuffer, role flashkit.Role) {
	for i := range x.list {
		if s := &x.list[i]; s.role&role != 0 && s.bytes > 0 {
			s.move(l.host, x.perBatch, role == flashkit.Input)
		}
	}
	storeFence()
}

// move copies a tensor row by row, or head by head if rows are dense in both memories. If addresses
// and sizes are multiples of 16 bytes, packing bypasses the caches, because the device copies
// cached lines more slowly.
func (s *staged) move(host unsafe.Pointer, perBatch int, pack bool) {
	size := s.t.DType().Size()
	rows, n, step := s.shape[2], s.shape[3]*size, s.row
	if step == n && (rows == 1 || s.t.Strides()[2]*size == n) {
		rows, n, step = 1, rows*n, rows*n
	}
	buffer, memory := unsafe.Slice((*byte)(unsafe.Add(host, s.offset)), s.bytes), hostmem.Bytes(s.t)
	uncached := n%rowAlignment == 0 && uintptr(host)%rowAlignment == 0
	for i := range s.shape[0] {
		batch, head := (s.first+i)/perBatch, (s.first+i)%perBatch*s.shape[1]
		if s.pages != nil {
			batch = int(s.pages[i])
		}
		for h := range s.shape[1] {
			for r := range rows {
				switch row := memory[s.t.Offset(batch, head+h, s.from+r)*size:][:n]; {
				case !pack:
					copy(row, buffer)
				case uncached:
					copyUncached(unsafe.Pointer(unsafe.SliceData(buffer)), unsafe.Pointer(unsafe.SliceData(row)), n)
				default:
					copy(buffer, row)
				}
				buffer = buffer[step:]
			}
		}
	}
}

// setArguments fills in the arguments of the chunk's call. The arguments refer to the tensors'
// copies on the device.
func (x *chunk) setArguments(a *arguments, device Pointer) {
	a.reset(x.p, x.call)
	if a.dbiasShape[0] > 1 {
		a.dbiasShape[0] = int32(x.p.Batch)
	}
	for i := range x.list {
		s := &x.list[i]
		s.place(a.view(s.arg), device)
		if s.arg < len(a.shapes) {
			a.shapes[s.arg] = s.whole
		}
	}
	a.finish(x.call, x.sequences())
}

func (x *chunk) sequences() *flashkit.Sequences {
	if x.call.Args.Seqs == nil {
		return nil
	}
	s := *x.call.Args.Seqs
	s.QStarts, s.KVStarts, s.Pages = fromZero(s.QStarts), fromZero(s.KVStarts), x.table
	return &s
}

// hostBytes returns the bytes of a dense call's inputs and of its outputs. It also returns the
// number of unaligned rows, which are packed one by one.
func hostBytes(p flashkit.Problem, pass flashkit.Pass) (in, out, rows float64) {
	size := float64(p.DType.Size())
	n, m := float64(p.Batch)*float64(p.Heads)*float64(p.QLen), float64(p.Batch)*float64(p.KVHeads)*float64(p.KVLen)
	qk, v, o := size*float64(p.Dim)*(n+m), size*float64(p.VDim)*m, size*float64(p.VDim)*n
	for _, dim := range [...]int{p.Dim, p.VDim} {
		if dim*p.DType.Size()%rowAlignment != 0 {
			rows += n + m
		}
	}
	if pass == flashkit.PassBackward {
		return qk + v + 2*o + 4*n, qk + v, 2 * rows
	}
	return qk + v, o + 4*n, rows
}
