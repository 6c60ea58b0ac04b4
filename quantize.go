package flashkit

import "math"

// QuantizeRows quantizes new keys or values to Int8 and writes them to a cache. from is
// [B, G, n, D], Float32, Float16 or BFloat16. to is Int8 [B, G, M, D] or, with a page table, a pool
// [pages, G, Page, D]. scale is Float32 or Float16, with the first three dimensions of to. The scales of a row
// share the row's elements in groups of 32, of 64, or of a whole row.
//
// Row i of sequence b becomes key first[b]+i of the sequence. If first is nil, all rows begin at key
// 0. pages is the page table [B][w] of Sequences.Pages, nil without pages.
//
// The scale of a group is the largest magnitude of its elements, divided by 127. Each element
// becomes the nearest multiple of the scale, ties to even. A group of zeros has scale 0. A group
// with NaN or infinity, or with a scale beyond Float16, has the scale NaN: calls then give NaN for
// rows that see the key. Equal rows give equal bits. An error is a *ProblemError; nothing is written
// then.
func QuantizeRows(to, scale, from Tensor, first, pages []int32) error {
	q := quantizing{&to, &scale, &from, first, pages}
	if err := q.check(); err != nil {
		return err
	}
	if from.empty() {
		return nil
	}
	var few [512]float32 // a short row allocates nothing
	n := from.shape[3]
	row := few[:min(n, len(few))]
	if len(row) < n {
		row = make([]float32, n)
	}
	for b := range from.shape[0] {
		for i := range from.shape[2] {
			batch, key := q.place(b, i)
			for h := range from.shape[1] {
				from.floats(row, from.Offset(b, h, i))
				quantizeRow(&to, to.Offset(batch, h, key), &scale, scale.Offset(batch, h, key), row)
			}
		}
	}
	return nil
}

// quantizing holds the arguments of QuantizeRows.
type quantizing struct {
	to, scale, from *Tensor
	first, pages    []int32
}

// place returns the batch or page, and the row there, of row i of sequence b.
func (q *quantizing) place(b, i int) (batch, key int) {
	key = i
	if q.first != nil {
		key += int(q.first[b])
	}
	if q.pages == nil {
		return b, key
	}
	w, page := len(q.pages)/q.from.shape[0], q.to.shape[2]
	return int(q.pages[b*w+key/page]), key % page
}

func (q *quantizing) check() error {
	to, scale, from := q.to, q.scale, q.from
	if !from.dtype.isData() {
		return problemErr("from.dtype", from.dtype, "must be f32, f16 or bf16")
	}
	if to.dtype != Int8 {
		return problemErr("to.dtype", to.dtype, "must be i8")
	}
	if scale.dtype != Float32 && scale.dtype != Float16 {
		return problemErr("scale.dtype", scale.dtype, "must be f32 or f16")
	}
	want := from.shape
	want[2] = to.shape[2]
	if q.pages != nil {
		want[0] = to.shape[0]
	}
	if to.shape != want {
		return problemErr("to.shape", to.shape, "must be %v", want)
	}
	want[3] = scale.shape[3]
	if scale.shape != want {
		return problemErr("scale.shape", scale.shape, "must be %v", want)
	}
	if n := scale.shape[3]; from.shape[3] < 1 || groupSize(from.shape[3], n) == 0 {
		return problemErr("scale.shape", scale.shape, "must have 1 scale a row of %d elements, or one for each 32 or 64", from.shape[3])
	}
	if err := q.checkMemory(); err != nil {
		return err
	}
	return q.checkPlaces() // in proportion to the shapes, so after the memory
}

// groupSize returns the number of elements that share one of n scales of a row, or 0 for a wrong n.
func groupSize(dim, n int) int {
	for _, g := range [...]int{dim, 64, 32} {
		if n > 0 && (dim-1)/g+1 == n {
			return g
		}
	}
	return 0
}

func (q *quantizing) checkPlaces() error {
	batch, n := q.from.shape[0], q.from.shape[2]
	if q.first != nil && len(q.first) != batch {
		return problemErr("first.len", len(q.first), "must be %d, the sequences of from", batch)
	}
	keys, w := q.to.shape[2], 0
	if q.pages != nil {
		if batch == 0 || len(q.pages)%batch != 0 {
			return problemErr("pages.len", len(q.pages), "must be a multiple of %d, the sequences of from", batch)
		}
		w = len(q.pages) / batch
		if keys == 0 || overflows(math.MaxInt, keys, w) {
			return problemErr("to.shape", q.to.shape, "must have pages of at least 1 key")
		}
		keys *= w
	}
	if q.first == nil && q.from.empty() {
		batch = 0
	}
	for b := range batch {
		at := 0
		if q.first != nil {
			at = int(q.first[b])
		}
		if at < 0 || at > keys-n {
			return problemErr(element("first", b), at, "must be from 0 to %d, so that %d rows fit %d keys", max(0, keys-n), n, keys)
		}
		for i := at; i < at+n && w > 0; i++ {
			if p := q.pages[b*w+i/q.to.shape[2]]; p < 0 || int(p) >= q.to.shape[0] {
				return problemErr(element("pages", b*w+i/q.to.shape[2]), p, "must be from 0 to %d, the pages of to", q.to.shape[0]-1)
			}
		}
	}
	return nil
}

// checkMemory checks strides, and that all tensors are on the host.
func (q *quantizing) checkMemory() error {
	list := [...]arg{
		{Argument: &Argument{Name: "to"}, t: q.to, role: Output},
		{Argument: &Argument{Name: "scale"}, t: q.scale, role: Output},
		{Argument: &Argument{Name: "from"}, t: q.from, role: Input},
	}
	for i := range list {
		x := &list[i]
		if x.t.owner != nil {
			return problemErr(x.Name, x.t.where(), "must lie on the host")
		}
		if x.t.empty() {
			continue
		}
		if err := x.checkStrides(); err != nil {
			return err
		}
		x.from, x.to = x.t.span()
	}
	return checkShared(list[:])
}

// quantizeRow quantizes a row to the elements of to and scale that begin at the given offsets.
func quantizeRow(to *Tensor, at int, scale *Tensor, scaleAt int, row []float32) {
	n := groupSize(len(row), scale.shape[3])
	for codes := to.Int8s()[at:]; len(row) > 0; scaleAt++ {
		group := row[:min(n, len(row))]
		s := groupScale(group)
		if scale.dtype == Float16 {
			scale.Uint16s()[scaleAt], s = finiteF16(s)
		} else {
			scale.Float32s()[scaleAt] = s
		}
		quantizeGroup(codes[:len(group)], group, s)
		row, codes = row[len(group):], codes[len(group):]
	}
}

// groupScale returns the largest magnitude of x divided by 127, or NaN if x has NaN or infinity.
func groupScale(x []float32) float32 {
	top := float32(0)
	for _, v := range x {
		if v-v != 0 {
			return float32(math.NaN())
		}
		top = max(top, v, -v)
	}
	return top / 127
}

// quantizeGroup sets codes to the nearest multiples of s.
func quantizeGroup(codes []int8, x []float32, s float32) {
	if !(s > 0) {
		clear(codes)
		return
	}
	for i, v := range x {
		codes[i] = int8(max(-127, min(127, math.RoundToEven(float64(v)/float64(s)))))
	}
}
