package ring

import (
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/internal/hostmem"
	"github.com/flashkit-go/flashkit/internal/workers"
)

// sub returns the view of batches [b, b+nb) and rows [r, r+n) of t.
func sub(t flashkit.Tensor, b, nb, r, n int) flashkit.Tensor {
	if t.IsZero() {
		return t
	}
	shape := t.Shape()
	return window(t, min(t.Offset(b, 0, r), t.Len()), [4]int{nb, shape[1], n, shape[3]})
}

// window returns the view of t that begins at element `from`, with shape s and t's strides.
func window(t flashkit.Tensor, from int, s [4]int) (x flashkit.Tensor) {
	strides := t.Strides()
	if isEmpty(t) {
		from = 0 // strides of an empty tensor may be arbitrary
	}
	switch owner := t.Owner(); {
	case owner != nil:
		x = flashkit.OnDevice(owner, t.DType(), t.Address()+uintptr(from*t.DType().Size()), t.Len()-from, s[0], s[1], s[2], s[3])
	case t.DType() == flashkit.Float16:
		x = flashkit.F16(t.Uint16s()[from:], s[0], s[1], s[2], s[3])
	case t.DType() == flashkit.BFloat16:
		x = flashkit.BF16(t.Uint16s()[from:], s[0], s[1], s[2], s[3])
	case t.DType() == flashkit.Bool:
		x = flashkit.Bools(t.Bools()[from:], s[0], s[1], s[2], s[3])
	default:
		x = flashkit.F32(t.Float32s()[from:], s[0], s[1], s[2], s[3])
	}
	return x.WithStrides(strides[0], strides[1], strides[2])
}

func zeros(t flashkit.DType, s [4]int) flashkit.Tensor {
	return flashkit.Zeros(t, s[0], s[1], s[2], s[3])
}

func isEmpty(t flashkit.Tensor) bool {
	s := t.Shape()
	return s[0] == 0 || s[1] == 0 || s[2] == 0 || s[3] == 0
}

func sizeOf(t flashkit.Tensor) int64 {
	s := t.Shape()
	return int64(s[0]) * int64(s[1]) * int64(s[2]) * int64(s[3]) * int64(t.DType().Size())
}

// hostTensor returns a dense tensor in memory m.
func hostTensor(m []uint64, t flashkit.DType, n [4]int) flashkit.Tensor {
	p, count := unsafe.Pointer(unsafe.SliceData(m)), n[0]*n[1]*n[2]*n[3]
	switch t {
	case flashkit.Float16:
		return flashkit.F16(unsafe.Slice((*uint16)(p), count), n[0], n[1], n[2], n[3])
	case flashkit.BFloat16:
		return flashkit.BF16(unsafe.Slice((*uint16)(p), count), n[0], n[1], n[2], n[3])
	}
	return flashkit.F32(unsafe.Slice((*float32)(p), count), n[0], n[1], n[2], n[3])
}

// copyTensor copies src to dst. Both are on the host and must have the same shape and type.
func copyTensor(dst, src flashkit.Tensor) error {
	if dst.Shape() != src.Shape() || dst.DType() != src.DType() {
		return fmt.Errorf("a tensor %v of %v came, %v of %v was expected", src.Shape(), src.DType(), dst.Shape(), dst.DType())
	}
	s, size := dst.Shape(), dst.DType().Size()
	to, from := hostmem.Bytes(&dst), hostmem.Bytes(&src)
	if isEmpty(dst) {
		return nil
	}
	rows, row := s[2], s[3]
	if dst.Strides()[2] == s[3] && src.Strides()[2] == s[3] {
		rows, row = 1, s[2]*s[3]
	}
	for b := range s[0] {
		for h := range s[1] {
			for r := range rows {
				copy(to[dst.Offset(b, h, r)*size:][:row*size], from[src.Offset(b, h, r)*size:])
			}
		}
	}
	return nil
}

// arithmetic computes on host tensors with the goroutines of a pool, and on device tensors with a
// Device.
type arithmetic struct {
	pool workers.Pool
	dev  Device // for device tensors
	err  error  // the first error of a device
}

func (a *arithmetic) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

type task struct {
	next  atomic.Int64
	n     int64
	heads int
	f     func(b, h int)
}

func (t *task) Work(int) {
	for i := t.next.Add(1) - 1; i < t.n; i = t.next.Add(1) - 1 {
		t.f(int(i)/t.heads, int(i)%t.heads)
	}
}

// each calls f for each head of each batch of t, if t has elements.
func (a *arithmetic) each(t flashkit.Tensor, f func(b, h int)) {
	if isEmpty(t) {
		return
	}
	s := t.Shape()
	helpers := 0
	if s[2]*s[3] > 1<<12 {
		helpers = s[0]*s[1] - 1
	}
	a.pool.Run(&task{n: int64(s[0] * s[1]), heads: s[1], f: f}, min(helpers, 255))
}

// fill sets every element of a Float32 tensor to x.
func (a *arithmetic) fill(t flashkit.Tensor, x float32) {
	if t.Owner() != nil {
		a.fail(a.dev.Fill(t, x))
		return
	}
	a.each(t, func(b, h int) {
		for r := range t.Shape()[2] {
			row := t.Float32s()[t.Offset(b, h, r):][:t.Shape()[3]]
			for i := range row {
				row[i] = x
			}
		}
	})
}

// zero clears a tensor of any type.
func (a *arithmetic) zero(t flashkit.Tensor) {
	if t.Owner() != nil {
		a.fail(a.dev.Fill(t, 0))
		return
	}
	size := t.DType().Size()
	a.each(t, func(b, h int) {
		for r := range t.Shape()[2] {
			clear(hostmem.Bytes(&t)[t.Offset(b, h, r)*size:][:t.Shape()[3]*size])
		}
	})
}

// convert copies src to dst, and converts each element to dst's type. If the types differ, one of
// them is Float32.
func (a *arithmetic) convert(dst, src flashkit.Tensor) {
	if dst.Owner() != nil {
		a.fail(a.dev.Add(dst, src, flashkit.Tensor{}))
		return
	}
	a.each(dst, func(b, h int) {
		buf := make([]float32, dst.Shape()[3])
		for r := range dst.Shape()[2] {
			row := loadRow(src, b, h, r, buf)
			narrow(dst, b, h, r, row)
		}
	})
}

// add adds src to dst. The two tensors may have any types.
func (a *arithmetic) add(dst, src flashkit.Tensor) {
	if dst.Owner() != nil {
		a.fail(a.dev.Add(dst, dst, src))
		return
	}
	a.each(dst, func(b, h int) {
		buf, sum := make([]float32, dst.Shape()[3]), make([]float32, dst.Shape()[3])
		for r := range dst.Shape()[2] {
			to := loadRow(dst, b, h, r, sum)
			for i, x := range loadRow(src, b, h, r, buf) {
				to[i] += x
			}
			storeRow(dst, b, h, r, to)
		}
	})
}

// merge merges part and partLSE, the result for other keys, into o and lse. o and part may be of
// any type.
func (a *arithmetic) merge(o, lse, part, partLSE flashkit.Tensor) {
	if o.Owner() != nil {
		a.fail(a.dev.Merge(o, lse, part, partLSE))
		return
	}
	a.each(o, func(b, h int) {
		buf, mine := make([]float32, o.Shape()[3]), make([]float32, o.Shape()[3])
		for r := range o.Shape()[2] {
			l, x := &lse.Float32s()[lse.Offset(b, h, r)], partLSE.Float32s()[partLSE.Offset(b, h, r)]
			if math.IsInf(float64(x), -1) {
				continue
			}
			sum, w, v := mergeWeights(float64(*l), float64(x))
			*l = float32(sum)
			to := loadRow(o, b, h, r, mine)
			for i, y := range loadRow(part, b, h, r, buf) {
				to[i] = w*to[i] + v*y
			}
			storeRow(o, b, h, r, to)
		}
	})
}

// mergeWeights merges two results of a row, with LSE a and b. It returns the LSE of the merged row,
// and the weight of each result in the merged row.
func mergeWeights(a, b float64) (lse float64, wa, wb float32) {
	m := max(a, b)
	switch {
	case math.IsInf(m, -1):
		return m, 0, 1
	case math.IsInf(m, 1):
		m = math.NaN() // as a score of +Inf makes a row NaN
	}
	ea, eb := math.Exp(a-m), math.Exp(b-m)
	return m + math.Log(ea+eb), float32(ea / (ea + eb)), float32(eb / (ea + eb))
}

// loadRow returns a row as float32. If the row must be converted, the result is in buf. Otherwise
// the result is the tensor's own memory.
func loadRow(t flashkit.Tensor, b, h, r int, buf []float32) []float32 {
	at := t.Offset(b, h, r)
	switch t.DType() {
	case flashkit.Float16:
		for i, x := range t.Uint16s()[at:][:len(buf)] {
			buf[i] = half.FromF16(x)
		}
	case flashkit.BFloat16:
		for i, x := range t.Uint16s()[at:][:len(buf)] {
			buf[i] = half.FromBF16(x)
		}
	default:
		return t.Float32s()[at:][:len(buf)]
	}
	return buf
}

// storeRow writes a result of loadRow to the tensor, unless that result is the tensor's own memory.
func storeRow(t flashkit.Tensor, b, h, r int, row []float32) {
	if t.DType() != flashkit.Float32 {
		narrow(t, b, h, r, row)
	}
}

// narrow rounds a row to the tensor's type and writes it to the tensor.
func narrow(t flashkit.Tensor, b, h, r int, row []float32) {
	at := t.Offset(b, h, r)
	switch t.DType() {
	case flashkit.Float16:
		for i, x := range row {
			t.Uint16s()[at+i] = half.ToF16(x)
		}
	case flashkit.BFloat16:
		for i, x := range row {
			t.Uint16s()[at+i] = half.ToBF16(x)
		}
	default:
		copy(t.Float32s()[at:], row)
	}
}
