package cuda

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// joinArgs is struct Join of kernels/join.cu.
type joinArgs struct {
	dst, x, y, lse, partLSE view
	count                   int64
	heads, rows, dim        int32
	lanes                   int32
	dstType, xType, yType   int32
	aligned                 int32
	value                   float32
	_                       [4]byte
}

// joinThreads is the number of threads of a block of kernels/join.cu. joinColumns is the number of
// columns that a thread loads at once.
const (
	joinThreads = 256
	joinColumns = 8
)

// Fill sets every element of a tensor on the stream's device to x, rounded to the tensor's type,
// which must not be Bool. Like Add, Merge and Copy, Fill enqueues the work and returns at once.
func (s *Stream) Fill(t flashkit.Tensor, x float32) error {
	a := &joinArgs{value: x}
	return s.join(joinSum, a, operand{"tensor", t, t, &a.dst})
}

// Add sets dst to x+y, computed in float32 and rounded to dst's type. The three tensors have the
// same shape, and any types but Bool; dst may be x or y. If y is the zero Tensor, Add converts x to
// dst's type.
func (s *Stream) Add(dst, x, y flashkit.Tensor) error {
	a := new(joinArgs)
	return s.join(joinSum, a, operand{"dst", dst, dst, &a.dst}, operand{"x", x, dst, &a.x}, operand{"y", y, dst, &a.y})
}

// Merge combines two results of the same queries over disjoint sets of keys. Before the call, o and
// lse hold the result over the first set, and part and partLSE hold the result over the second set.
// Merge writes the result over all keys to o and lse. o and part have the same shape, and any types
// but Bool. lse and partLSE are float32 of shape [batch, heads, rows, 1]. If part is the zero
// Tensor, the values of the second set are taken as 0, like the value of a sink. A row of o that
// sees no key of either set becomes 0.
func (s *Stream) Merge(o, lse, part, partLSE flashkit.Tensor) error {
	a := new(joinArgs)
	n := o.Shape()
	n[3] = 1
	for _, t := range [...]flashkit.Tensor{lse, partLSE} {
		if t.Shape() != n || t.DType() != flashkit.Float32 {
			return &flashkit.ProblemError{Field: "LSE", Value: fmt.Sprint(t.Shape(), t.DType()), Reason: fmt.Sprint("must be float32 of shape ", n)}
		}
	}
	return s.merge(a, o, lse, part, partLSE)
}

func (s *Stream) merge(a *joinArgs, o, lse, other, otherLSE flashkit.Tensor) error {
	return s.join(joinMerge, a, operand{"o", o, o, &a.dst}, operand{"o", o, o, &a.x}, operand{"part", other, o, &a.y}, operand{"lse", lse, lse, &a.lse}, operand{"partLSE", otherLSE, lse, &a.partLSE})
}

// An operand is a tensor t of a join. name is the tensor's name in errors. like has the shape that
// t must have. join stores the view of t in *to.
type operand struct {
	name string
	t    flashkit.Tensor
	like flashkit.Tensor
	to   *view
}

// join launches a kernel of kernels/join.cu. Operand 0 is the destination.
func (s *Stream) join(id joinID, a *joinArgs, parts ...operand) error {
	for i := range parts {
		x := &parts[i]
		if i > 0 && x.t.IsZero() {
			continue
		}
		if err := s.checkOperand(x); err != nil {
			return err
		}
		x.to.set(x.t)
	}
	n := parts[0].t.Shape()
	a.count = int64(n[0]) * int64(n[1]) * int64(n[2])
	if a.count == 0 || n[3] == 0 {
		return nil
	}
	a.heads, a.rows, a.dim, a.lanes = int32(n[1]), int32(n[2]), int32(n[3]), 1
	for a.lanes < 32 && int(a.lanes)*joinColumns < n[3] {
		a.lanes *= 2
	}
	a.dstType, a.aligned = int32(parts[0].t.DType()), 1
	for i, to := range [...]*int32{&a.dstType, &a.xType, &a.yType} {
		if i >= len(parts) || parts[i].t.IsZero() {
			continue
		}
		*to = int32(parts[i].t.DType())
		if !inPieces(parts[i].t) {
			a.aligned = 0
		}
	}
	blocks := (a.count*int64(a.lanes) + joinThreads - 1) / joinThreads
	if blocks > math.MaxInt32 {
		return &flashkit.ProblemError{Field: "shape", Value: fmt.Sprint(n), Reason: "has too many rows for one launch"}
	}
	err := s.b.do(func() error {
		f, err := s.b.images.getJoin(s.b.drv, id)
		if err != nil {
			return err
		}
		return f.run(s.b.drv.LaunchKernel, int(blocks), unsafe.Pointer(a), s.handle)
	})
	if err != nil {
		return fmt.Errorf("cuda/%s: %w", joinNames[id], err)
	}
	return nil
}

// inPieces reports whether a tensor's rows begin at multiples of 16 bytes, so that one load can
// read 16 bytes of a row.
func inPieces(t flashkit.Tensor) bool {
	bits := t.Address()
	for d, stride := range t.Strides() {
		if d < 3 && t.Shape()[d] > 1 {
			bits |= uintptr(stride * t.DType().Size())
		}
	}
	return bits%16 == 0
}

// checkOperand returns an error if the stream's device cannot access a tensor, or if the tensor's
// shape is wrong.
func (s *Stream) checkOperand(x *operand) error {
	m, ok := x.t.Owner().(*Buffer)
	switch {
	case !ok || m.b != s.b && !s.b.reaches(m.b):
		return &flashkit.ProblemError{Field: x.name, Value: "elsewhere", Reason: "must be a tensor that " + s.b.dev.String() + " reaches"}
	case m.freed.Load():
		return &flashkit.ProblemError{Field: x.name, Value: "freed", Reason: "its buffer is freed"}
	case x.t.DType() == flashkit.Bool:
		return &flashkit.ProblemError{Field: x.name, Value: x.t.DType().String(), Reason: "must be of numbers"}
	case x.t.Shape() != x.like.Shape():
		return &flashkit.ProblemError{Field: x.name, Value: fmt.Sprint(x.t.Shape()), Reason: fmt.Sprint("must have the shape ", x.like.Shape())}
	}
	return fitsMemory(x.name, x.t)
}

// fitsMemory returns an error if a tensor's shape and strides exceed the tensor's Len elements.
func fitsMemory(name string, t flashkit.Tensor) error {
	n, stride := t.Shape(), t.Strides()
	if n[0] == 0 || n[1] == 0 || n[2] == 0 || n[3] == 0 {
		return nil
	}
	last := n[3]
	for d := range 3 {
		if n[d] < 0 || stride[d] < 0 || n[d] > math.MaxInt32 || n[d] > 1 && stride[d] > (t.Len()-last)/(n[d]-1) {
			return &flashkit.ProblemError{Field: name, Value: fmt.Sprint(n, stride), Reason: fmt.Sprintf("does not fit the %d elements of its memory", t.Len())}
		}
		last += (n[d] - 1) * stride[d]
	}
	if n[3] < 0 || last > t.Len() {
		return &flashkit.ProblemError{Field: name, Value: fmt.Sprint(n, stride), Reason: fmt.Sprintf("does not fit the %d elements of its memory", t.Len())}
	}
	return nil
}
