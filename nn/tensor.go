package nn

import (
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
)

// Rows describes the division of a tensor's rows into sequences: by default Batch sequences of T
// rows, one after the other.
type Rows struct {
	Batch int // number of sequences
	T     int // rows of a sequence, including padding; of the longest sequence if packed

	// Lens has the length of each padded sequence, from 0 to T. Attention ignores rows beyond the
	// length and outputs 0 there. If Lens is nil, all sequences have T rows.
	Lens []int32

	// Starts is set for packed sequences. For other sequences it is nil. Sequence b has rows
	// [Starts[b], Starts[b+1]), as in cu_seqlens of other libraries. Starts has Batch+1 numbers,
	// and the first is 0. T is the length of the longest sequence.
	Starts []int32

	// TimeFirst orders rows as [T, Batch], as PyTorch does with batch_first=False.
	TimeFirst bool
}

// Packed returns the Rows of packed sequences, without padding. If starts is invalid, the first
// layer that uses the Rows reports an error.
func Packed(starts []int32) Rows {
	r := Rows{Batch: max(0, len(starts)-1), Starts: starts}
	for b := 1; b < len(starts); b++ {
		r.T = max(r.T, int(starts[b])-int(starts[b-1]))
	}
	return r
}

// Padded returns the Rows of sequences of the given lengths, each padded to t rows. If lens is
// invalid, the first layer that uses the Rows reports an error.
func Padded(t int, lens []int32) Rows { return Rows{Batch: len(lens), T: t, Lens: lens} }

// Count returns the number of rows, including padding.
func (r Rows) Count() int {
	if n := len(r.Starts); n > 0 {
		return int(r.Starts[n-1])
	}
	return r.Batch * r.T
}

// sequence returns the positions of the n rows of sequence b, without padding: row i of the
// sequence is row first + i*step of the tensor.
func (r *Rows) sequence(b int) (first, n, step int) {
	switch {
	case r.Starts != nil:
		return int(r.Starts[b]), int(r.Starts[b+1] - r.Starts[b]), 1
	case r.Lens != nil:
		n = int(r.Lens[b])
	default:
		n = r.T
	}
	if r.TimeFirst {
		return b, n, r.Batch
	}
	return b * r.T, n, 1
}

// check returns an error if r is invalid. The parameter `of` is the name of r in the error.
func (r *Rows) check(of string) error {
	switch {
	case r.Batch < 0:
		return problem(of+".Batch", r.Batch, "must be at least 0")
	case r.T < 0:
		return problem(of+".T", r.T, "must be at least 0")
	case r.T > 0 && r.Batch > math.MaxInt32/r.T:
		return problem(of+".Batch", r.Batch, "times T = %d is beyond 32 bits", r.T)
	case r.Starts != nil && (r.Lens != nil || r.TimeFirst):
		return problem(of+".Starts", "given", "must not stand beside Lens or TimeFirst: sequences are packed or not")
	case r.Starts != nil && len(r.Starts) != r.Batch+1:
		return problem(of+".Starts.len", len(r.Starts), "must be Batch + 1 = %d", r.Batch+1)
	case r.Starts != nil && r.Starts[0] != 0:
		return problem(of+".Starts[0]", r.Starts[0], "must be 0")
	case r.Lens != nil && len(r.Lens) != r.Batch:
		return problem(of+".Lens.len", len(r.Lens), "must be Batch = %d", r.Batch)
	}
	for b, n := range r.Lens {
		if n < 0 || int(n) > r.T {
			return problem(fmt.Sprintf("%s.Lens[%d]", of, b), n, "must be from 0 to T = %d", r.T)
		}
	}
	longest := 0
	for b := 1; b < len(r.Starts); b++ {
		n := int(r.Starts[b]) - int(r.Starts[b-1])
		if n < 0 || n > r.T {
			return problem(fmt.Sprintf("%s.Starts[%d]", of, b), r.Starts[b], "must be from 0 to T = %d more than the one before it", r.T)
		}
		longest = max(longest, n)
	}
	if r.Starts != nil && longest != r.T {
		return problem(of+".T", r.T, "must be the longest sequence, %d", longest)
	}
	return nil
}

// equal reports whether r and o divide rows into the same sequences.
func (r *Rows) equal(o *Rows) bool {
	if r.Batch != o.Batch || r.T != o.T || r.TimeFirst != o.TimeFirst || !equal(r.Lens, o.Lens) || !equal(r.Starts, o.Starts) {
		return false
	}
	return true
}

// equal reports whether a and b have equal elements. A nil slice differs from an empty slice.
func equal(a, b []int32) bool {
	if (a == nil) != (b == nil) || len(a) != len(b) {
		return false
	}
	if len(a) > 0 && &a[0] == &b[0] {
		return true
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// A Tensor is a view of activations in memory: rows of features, divided into sequences.
type Tensor struct {
	Data     []float32 // row-major
	Features int       // elements of a row
	Stride   int       // elements between the starts of rows; 0 is Features
	Rows               // division of the rows into sequences
}

// NewTensor returns a tensor [batch, t, features] with the given data, which it does not copy. If
// data is too short, the first layer that uses the tensor reports an error.
func NewTensor(data []float32, batch, t, features int) Tensor {
	return Tensor{Data: data, Features: features, Rows: Rows{Batch: batch, T: t}}
}

// Columns returns a view of features [i, i+n) of every row. If the range is beyond Features, the
// first layer that uses the view reports an error.
func (x Tensor) Columns(i, n int) Tensor {
	x.Stride = x.stride()
	if i < 0 || n < 0 || i > x.Features-n {
		x.Features = -1
		return x
	}
	x.Data, x.Features = x.Data[min(i, len(x.Data)):], n
	return x
}

// Part returns a view of rows [from, from+n) as one sequence. If the range is beyond the rows, the
// first layer that uses the view reports an error.
func (x Tensor) Part(from, n int) Tensor {
	stride := x.stride()
	if from < 0 || n < 0 || from > x.Count()-n {
		x.Features = -1
		return x
	}
	x.Data, x.Rows = x.Data[min(from*stride, len(x.Data)):], Rows{Batch: 1, T: n}
	return x
}

// Row returns the features of row i. Rows are numbered in the order of memory.
func (x *Tensor) Row(i int) []float32 { return x.Data[i*x.stride():][:x.Features:x.Features] }

func (x *Tensor) stride() int {
	if x.Stride == 0 {
		return x.Features
	}
	return x.Stride
}

// isDense reports whether there are no gaps between rows.
func (x *Tensor) isDense() bool { return x.stride() == x.Features || x.Count() <= 1 }

// check returns an error if x is invalid or does not have the given number of features. If features
// is 0, any number of features is accepted. The first parameter is the name of x in the error.
func (x *Tensor) check(of string, features int) error {
	switch {
	case x.Features < 1:
		return problem(of+".Features", x.Features, "must be at least 1")
	case features > 0 && x.Features != features:
		return problem(of+".Features", x.Features, "must be %d", features)
	case x.stride() < x.Features:
		return problem(of+".Stride", x.Stride, "must be at least Features = %d", x.Features)
	}
	if err := x.Rows.check(of); err != nil {
		return err
	}
	rows, stride := x.Count(), x.stride()
	if rows > 0 && (len(x.Data) < x.Features || rows-1 > (len(x.Data)-x.Features)/stride) {
		return problem(of+".Data.len", len(x.Data), "is too short for %d rows of %d features, %d apart", rows, x.Features, stride)
	}
	return nil
}

// heads returns a view of x in attention's layout, with n heads: [batch, n, rows, features of a
// head].
func (x *Tensor) heads(n int) flashkit.Tensor {
	d, stride := x.Features/n, x.stride()
	switch {
	case x.Starts != nil:
		return flashkit.F32(x.Data, 1, n, x.Count(), d).WithStrides(0, d, stride)
	case x.TimeFirst:
		return flashkit.F32(x.Data, x.Batch, n, x.T, d).WithStrides(stride, d, x.Batch*stride)
	}
	return flashkit.F32(x.Data, x.Batch, n, x.T, d).WithStrides(x.T*stride, d, stride)
}

// Tokens are token IDs, one per row.
type Tokens struct {
	IDs  []int32 // from 0 to the vocabulary's size - 1
	Rows         // division of the tokens into sequences
}

// NewTokens returns tokens [batch, t] with the given ids, which it does not copy. ids must have
// batch * t elements. If not, the first layer that uses the tokens reports an error.
func NewTokens(ids []int32, batch, t int) Tokens { return Tokens{ids, Rows{Batch: batch, T: t}} }

func problem(field string, value any, format string, args ...any) error {
	return &flashkit.ProblemError{Field: field, Value: fmt.Sprint(value), Reason: fmt.Sprintf(format, args...)}
}
