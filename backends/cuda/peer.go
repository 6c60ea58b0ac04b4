package cuda

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// Copy copies src to dst. Both have the same shape and type, and may be on any two devices. The
// stream may belong to either device. Copy uses copy engines and no multiprocessor, unless rows are
// so scattered that separate copies would take longer.
func (s *Stream) Copy(dst, src flashkit.Tensor) error {
	to, ok := dst.Owner().(*Buffer)
	from, ok2 := src.Owner().(*Buffer)
	switch {
	case !ok || !ok2:
		return &flashkit.ProblemError{Field: "dst, src", Value: "elsewhere", Reason: "must be tensors on a GPU"}
	case to.freed.Load() || from.freed.Load():
		return &flashkit.ProblemError{Field: "dst, src", Value: "freed", Reason: "a buffer is freed"}
	case dst.Shape() != src.Shape() || dst.DType() != src.DType():
		return &flashkit.ProblemError{Field: "src", Value: fmt.Sprint(src.Shape(), src.DType()), Reason: fmt.Sprint("must be ", dst.Shape(), dst.DType(), ", as dst is")}
	}
	if err := errors.Join(fitsMemory("dst", dst), fitsMemory("src", src)); err != nil {
		return err
	}
	runs := runsOf(dst, src)
	if runs.bytes == 0 {
		return nil
	}
	if runs.count() > maxRuns && dst.DType() != flashkit.Bool && s.b.reaches(to.b) && s.b.reaches(from.b) {
		return s.copyRows(dst, src)
	}
	return s.b.do(func() error {
		rows, toPitch, fromPitch := runs.rows()
		return runs.each(func(d, f int) error {
			at, of := Pointer(dst.Address())+Pointer(d), Pointer(src.Address())+Pointer(f)
			if rows > 1 {
				return s.b.drv.Memcpy3DPeerAsync(at, to.b.context, toPitch, of, from.b.context, fromPitch, runs.bytes, rows, s.handle)
			}
			return s.b.drv.MemcpyPeerAsync(at, to.b.context, of, from.b.context, runs.bytes, s.handle)
		})
	})
}

// copyRows copies with a kernel, which may change the bits of a NaN but no other bits.
func (s *Stream) copyRows(dst, src flashkit.Tensor) error { return s.Add(dst, src, flashkit.Tensor{}) }

// maxRuns is the maximum number of separate copies for one tensor. If more are needed, Copy uses a
// kernel if possible.
const maxRuns = 512

// runs are the contiguous pieces of two tensors with the same shape. bytes is the size of a piece.
// n, dst and src have one entry per dimension, innermost first: the dimension's length, its stride
// in dst and its stride in src. Strides are in bytes.
type runs struct {
	bytes int
	n     []int
	dst   []int
	src   []int
}

// runsOf returns the runs of two tensors. It joins dimensions that are contiguous in both tensors.
func runsOf(dst, src flashkit.Tensor) (r runs) {
	size, n := dst.DType().Size(), dst.Shape()
	type dim struct{ n, dst, src int }
	var list []dim
	for d := range 3 {
		if n[d] != 1 {
			list = append(list, dim{n[d], dst.Strides()[d] * size, src.Strides()[d] * size})
		}
	}
	slices.SortStableFunc(list, func(a, b dim) int { return a.src - b.src })
	r.bytes = n[3] * size
	for _, x := range list {
		switch {
		case x.n == 0:
			return runs{}
		case len(r.n) == 0 && x.dst == r.bytes && x.src == r.bytes:
			r.bytes *= x.n
		default:
			r.n, r.dst, r.src = append(r.n, x.n), append(r.dst, x.dst), append(r.src, x.src)
		}
	}
	return r
}

func (r *runs) count() int {
	all := 1
	for _, n := range r.n {
		all *= n
	}
	return all
}

// rows removes the innermost dimension from r if one copy can move all runs along that dimension.
// It returns the number of these runs, and the distance from one run to the next in dst and in src,
// in bytes. Otherwise rows returns 1.
func (r *runs) rows() (n, dst, src int) {
	const mostPitch = math.MaxInt32 // limit of the driver
	if len(r.n) == 0 || min(r.dst[0], r.src[0]) < r.bytes || max(r.dst[0], r.src[0]) > mostPitch {
		return 1, 0, 0
	}
	n, dst, src = r.n[0], r.dst[0], r.src[0]
	r.n, r.dst, r.src = r.n[1:], r.dst[1:], r.src[1:]
	return n, dst, src
}

// each calls f for every run, with the run's offsets in dst and in src, in bytes.
func (r *runs) each(f func(dst, src int) error) error {
	for i := range r.count() {
		dst, src := 0, 0
		for d, n := range r.n {
			dst, src, i = dst+i%n*r.dst[d], src+i%n*r.src[d], i/n
		}
		if err := f(dst, src); err != nil {
			return err
		}
	}
	return nil
}
