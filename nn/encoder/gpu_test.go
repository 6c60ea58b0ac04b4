package encoder

import (
	"context"
	"math"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/hostmem"
)

// A hostArea is memory of a hostMachine.
type hostArea struct {
	m    *hostMachine
	data []float32
}

func (a *hostArea) Bytes() int { return 4 * len(a.data) }

func (a *hostArea) Free() error {
	delete(a.m.live, a)
	return nil
}

func (a *hostArea) Tensor(_ flashkit.DType, from, b, heads, rows, dim int) flashkit.Tensor {
	return flashkit.F32(a.data[from:], b, heads, rows, dim)
}

// A hostMachine is a machine in plain Go.
type hostMachine struct {
	d    *dispatch.Dispatcher
	live map[*hostArea]bool
	ints map[*hostArea][]int32
	fail map[string]error // by method
	open bool
	ran  map[string]int // calls by method
}

func newHost(d *dispatch.Dispatcher) *hostMachine {
	return &hostMachine{d, map[*hostArea]bool{}, map[*hostArea][]int32{}, map[string]error{}, true, map[string]int{}}
}

func (m *hostMachine) call(name string) error {
	m.ran[name]++
	return m.fail[name]
}

func (m *hostMachine) alloc(bytes int) (area, error) {
	a := &hostArea{m, poisoned(bytes / 4)}
	m.live[a] = true
	return a, m.call("alloc")
}

func (m *hostMachine) upload(to area, src []float32) error {
	copy(to.(*hostArea).data, src)
	return m.call("upload")
}

func (m *hostMachine) uploadInts(to area, src []int32) error {
	m.ints[to.(*hostArea)] = append([]int32(nil), src...)
	return m.call("uploadInts")
}

func (m *hostMachine) download(dst []float32, from area) error {
	copy(dst, from.(*hostArea).data)
	return m.call("download")
}

// at returns the address of an element of a head's row.
func at(t flashkit.Tensor, head, row, j int) *float32 {
	s := t.Strides()
	return (*float32)(unsafe.Pointer(&hostmem.Bytes(&t)[4*(head*s[1]+row*s[2]+j)]))
}

func element(t flashkit.Tensor, row, j int) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(*at(t, 0, row, j))
}

func (m *hostMachine) multiply(c, a, w flashkit.Tensor, add bool) error {
	for i := range a.Shape()[2] {
		for o := range w.Shape()[2] {
			sum := 0.0
			for j := range w.Shape()[3] {
				sum += element(a, i, j) * element(w, o, j)
			}
			if add {
				sum += element(c, i, o)
			}
			*at(c, 0, i, o) = float32(sum)
		}
	}
	return m.call("multiply")
}

func (m *hostMachine) normalize(y, x flashkit.Tensor, n *cuda.Norm) error {
	d := x.Shape()
	for h := range d[1] {
		for i := range d[2] {
			mean, squares := 0.0, 0.0
			v := make([]float64, d[3])
			for j := range v {
				v[j] = float64(*at(x, h, i, j)) + element(n.Bias, 0, j)
				mean += v[j] / float64(d[3])
			}
			if n.RMS {
				mean = 0
			}
			for j := range v {
				squares += (v[j] - mean) * (v[j] - mean)
			}
			scale := 1 / math.Sqrt(squares/float64(d[3])+float64(n.Eps))
			for j := range v {
				*at(y, h, i, j) = float32((v[j]-mean)*scale*element(n.Weight, 0, j) + element(n.Shift, 0, j))
			}
		}
	}
	return m.call("normalize")
}

func act(x float64, f cuda.Activation) float64 {
	switch f {
	case cuda.ReLU:
		return max(x, 0)
	case cuda.GELU:
		return x * math.Erfc(-x/math.Sqrt2) / 2
	case cuda.GELUTanh:
		return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	case cuda.SiLU:
		return x / (1 + math.Exp(-x))
	}
	return x
}

func (m *hostMachine) activate(y, x, bias flashkit.Tensor, f cuda.Activation, gated bool) error {
	n := y.Shape()[3]
	for i := range y.Shape()[2] {
		for j := range n {
			v := act(element(x, i, j)+element(bias, 0, j), f)
			if gated {
				v *= element(x, i, n+j) + element(bias, 0, n+j)
			}
			*at(y, 0, i, j) = float32(v)
		}
	}
	return m.call("activate")
}

func (m *hostMachine) rotate(x, table flashkit.Tensor, positions area) error {
	d, half := x.Shape(), x.Shape()[3]/2
	for h := range d[1] {
		for i := range d[2] {
			p := int(m.ints[positions.(*hostArea)][i])
			for j := range half {
				u, v := at(x, h, i, j), at(x, h, i, j+half)
				c, s := *at(table, 0, p, j), *at(table, 0, p, j+half)
				*u, *v = *u*c-*v*s, *v*c+*u*s
			}
		}
	}
	return m.call("rotate")
}

func (m *hostMachine) add(y, x flashkit.Tensor) error {
	for i := range y.Shape()[2] {
		for j := range y.Shape()[3] {
			*at(y, 0, i, j) += *at(x, 0, i, j)
		}
	}
	return m.call("add")
}

func (m *hostMachine) attend(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	if err := m.d.Forward(ctx, p, args); err != nil {
		return err
	}
	return m.call("attend")
}

func (m *hostMachine) close() error {
	m.open = false
	return m.call("close")
}
