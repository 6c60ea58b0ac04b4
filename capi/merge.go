package main

// #include "abi.h"
import "C"

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// A merging combines the results o1 and o2 over two sets of keys. With lse =
// log(exp(lse1)+exp(lse2)), o is exp(lse1-lse)*o1 + exp(lse2-lse)*o2.
type merging struct {
	o, lse, o1, lse1, o2, lse2 flashkit.Tensor
}

func (m *merging) set(o, lse, o1, lse1, o2, lse2 *C.fk_tensor) error {
	list := [...]struct {
		name string
		from *C.fk_tensor
		to   *flashkit.Tensor
	}{{"o", o, &m.o}, {"o1", o1, &m.o1}, {"lse1", lse1, &m.lse1}, {"o2", o2, &m.o2}, {"lse2", lse2, &m.lse2}, {"lse", lse, &m.lse}}
	var f frame
	for i, x := range list {
		if x.from == nil && i == len(list)-1 {
			break // lse is optional
		}
		if x.from == nil {
			return stale(x.name, 0)
		}
		if x.from.device != C.FK_HOST {
			return wrong(C.FK_ERR_VALUE, x.name+".device", x.from.device, "must be FK_HOST")
		}
		if err := f.view(x.from, x.to, x.name); err != nil {
			return err
		}
		if x.to.IsZero() && i < len(list)-1 {
			return stale(x.name, 0)
		}
	}
	for _, x := range list {
		if err := m.check(x.name, x.to); err != nil {
			return err
		}
	}
	return m.checkOutputs()
}

// check returns an error if the type or the shape of a tensor does not match the tensor o.
func (m *merging) check(name string, t *flashkit.Tensor) error {
	shape, dtype := m.o.Shape(), m.o.DType()
	if name == "lse" || name == "lse1" || name == "lse2" {
		shape[3], dtype = 1, flashkit.Float32
	}
	switch {
	case t.IsZero():
		return nil
	case t.DType() != dtype:
		return wrong(C.FK_ERR_DTYPE, name+".dtype", t.DType(), "must be %v", dtype)
	case t.DType() == flashkit.Bool || t.DType() == flashkit.Int32 || t.DType() == flashkit.Int8:
		return wrong(C.FK_ERR_DTYPE, name+".dtype", t.DType(), "must be f32, f16 or bf16")
	case t.Shape() != shape && t.Shape()[3] != shape[3]:
		return wrong(C.FK_ERR_HEAD_DIM, name+".shape", t.Shape(), "must be %v", shape)
	case t.Shape() != shape:
		return wrong(C.FK_ERR_DIMENSION, name+".shape", t.Shape(), "must be %v", shape)
	}
	return nil
}

// checkOutputs returns an error if elements of an output overlap each other or another tensor. An
// output may share memory with another tensor only if both are the same view.
func (m *merging) checkOutputs() error {
	for _, out := range [...]struct {
		name string
		t    *flashkit.Tensor
	}{{"o", &m.o}, {"lse", &m.lse}} {
		if out.t.Len() == 0 {
			continue
		}
		if !isApart(out.t) {
			return wrong(C.FK_ERR_OVERLAP, out.name+".strides", out.t.Strides(), "lets elements of an output overlap; shape %v", out.t.Shape())
		}
		for _, in := range [...]struct {
			name string
			t    *flashkit.Tensor
		}{{"o", &m.o}, {"lse", &m.lse}, {"o1", &m.o1}, {"lse1", &m.lse1}, {"o2", &m.o2}, {"lse2", &m.lse2}} {
			if in.t != out.t && overlap(out.t, in.t) {
				return wrong(C.FK_ERR_OVERLAP, out.name, "output", "shares memory with %s", in.name)
			}
		}
	}
	return nil
}

// overlap reports whether two views share memory and are not the same view. If both views have
// gaps, overlap assumes that the views interleave without a common element. The C program must
// guarantee this.
func overlap(x, y *flashkit.Tensor) bool {
	from, to := x.Address(), x.Address()+uintptr(x.Len()*x.DType().Size())
	otherFrom, otherTo := y.Address(), y.Address()+uintptr(y.Len()*y.DType().Size())
	if from >= otherTo || otherFrom >= to {
		return false
	}
	if from == otherFrom {
		return to != otherTo || x.DType() != y.DType() || x.Strides() != y.Strides()
	}
	return to == otherTo || isDense(x) || isDense(y)
}

func isDense(t *flashkit.Tensor) bool {
	s := t.Shape()
	return t.Len() == s[0]*s[1]*s[2]*s[3]
}

// isApart reports whether no elements of t overlap. It tests that each stride is at least the
// extent of the dimensions with smaller strides.
func isApart(t *flashkit.Tensor) bool {
	shape, strides := t.Shape(), t.Strides()
	reach, done := shape[3], [3]bool{}
	for range 3 {
		next := -1
		for d := range 3 {
			if !done[d] && (next < 0 || strides[d] < strides[next]) {
				next = d
			}
		}
		if done[next] = true; shape[next] == 1 {
			continue
		}
		if strides[next] < reach {
			return false
		}
		reach += (shape[next] - 1) * strides[next]
	}
	return true
}

func (m *merging) run() {
	shape := m.o.Shape()
	for b := range shape[0] {
		for h := range shape[1] {
			for r := range shape[2] {
				m.row(b, h, r, shape[3])
			}
		}
	}
}

func (m *merging) row(b, h, r, n int) {
	first, second := m.lse1.Float32s()[m.lse1.Offset(b, h, r)], m.lse2.Float32s()[m.lse2.Offset(b, h, r)]
	w1, w2, lse := weights(float64(first), float64(second))
	if !m.lse.IsZero() {
		m.lse.Float32s()[m.lse.Offset(b, h, r)] = float32(lse)
	}
	at, from1, from2 := m.o.Offset(b, h, r), m.o1.Offset(b, h, r), m.o2.Offset(b, h, r)
	if m.o.DType() == flashkit.Float32 {
		mix(m.o.Float32s()[at:][:n], m.o1.Float32s()[from1:][:n], m.o2.Float32s()[from2:][:n], w1, w2)
		return
	}
	read, write := half.FromBF16, half.ToBF16
	if m.o.DType() == flashkit.Float16 {
		read, write = half.FromF16, half.ToF16
	}
	mixHalf(m.o.Uint16s()[at:][:n], m.o1.Uint16s()[from1:][:n], m.o2.Uint16s()[from2:][:n], w1, w2, read, write)
}

// weights takes the LSEs of two results. It returns the weights of the results, and the combined
// LSE. A result with LSE -inf has weight 0.
func weights(first, second float64) (w1, w2 float32, lse float64) {
	most := max(first, second)
	if math.IsInf(most, -1) {
		return 0, 0, most
	}
	e1, e2 := math.Exp(first-most), math.Exp(second-most)
	return float32(e1 / (e1 + e2)), float32(e2 / (e1 + e2)), most + math.Log(e1+e2)
}

// mix writes w1*x + w2*y into the slice named to. If w1 is 0, x is ignored, even if x has NaN. If
// w2 is 0, y is ignored.
func mix(to, x, y []float32, w1, w2 float32) {
	switch {
	case w1 == 0 && w2 == 0:
		clear(to)
	case w1 == 0:
		copy(to, y)
	case w2 == 0:
		copy(to, x)
	default:
		for i := range to {
			to[i] = w1*x[i] + w2*y[i]
		}
	}
}

func mixHalf(to, x, y []uint16, w1, w2 float32, read func(uint16) float32, write func(float32) uint16) {
	switch {
	case w1 == 0 && w2 == 0:
		clear(to)
	case w1 == 0:
		copy(to, y)
	case w2 == 0:
		copy(to, x)
	default:
		for i := range to {
			to[i] = write(w1*read(x[i]) + w2*read(y[i]))
		}
	}
}
