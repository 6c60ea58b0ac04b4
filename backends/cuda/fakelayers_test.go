package cuda

import (
	"encoding/binary"
	"math"

	"github.com/flashkit-go/flashkit"
)

// A fakeFloats reads and writes float32 numbers in the fake's memory.
type fakeFloats []byte

func (m fakeFloats) get(i int) float64 {
	if m == nil {
		return 0
	}
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(m[4*i:])))
}

// floats returns the memory at an address, or nil for address 0.
func (f *fakeDriver) floats(p Pointer) fakeFloats {
	if p == 0 {
		return nil
	}
	m, _ := f.at(p)
	return m
}

// layer computes the results of kernels/layers.cu.
func (f *fakeDriver) layer(name string, l *layerArgs, threads int) error {
	view := func(v view) *fakeView {
		m, _ := f.at(v.data)
		return &fakeView{memory: m, view: v, dtype: flashkit.Float32}
	}
	x, y := view(l.x), view(l.y)
	bias, weight, shift := f.floats(l.bias), f.floats(l.weight), f.floats(l.shift)
	n, groups := int(l.features), int(l.groups)
	switch name {
	case "layers_norm":
		for i := range min(int(l.count), threads/32) {
			normRow(x, y, l, bias, weight, shift, i%groups, i/groups)
		}
	case "layers_activate":
		for i := range min(int(l.count), threads) {
			row, j := i/n, i%n
			v := fakeActivation(x.get(0, 0, row, j)+bias.get(j), l.kind)
			if l.gated != 0 {
				v *= x.get(0, 0, row, n+j) + bias.get(n+j)
			}
			y.set(0, 0, row, j, v)
		}
	default:
		for i := range min(int(l.count), threads) {
			j, g, row := i%n, i/n%groups, i/n/groups
			position, _ := f.at(l.position)
			at := int(binary.LittleEndian.Uint32(position[4*row:])) * 2 * n
			u, v, c, s := x.get(0, g, row, j), x.get(0, g, row, n+j), weight.get(at+j), weight.get(at+n+j)
			x.set(0, g, row, j, u*c-v*s)
			x.set(0, g, row, n+j, v*c+u*s)
		}
	}
	return nil
}

func normRow(x, y *fakeView, l *layerArgs, bias, weight, shift fakeFloats, group, row int) {
	n, mean, squares := int(l.features), 0.0, 0.0
	v := make([]float64, n)
	for j := range v {
		v[j] = x.get(0, group, row, j) + bias.get(j)
		mean += v[j] / float64(n)
	}
	if l.kind == 1 {
		mean = 0
	}
	for j := range v {
		squares += (v[j] - mean) * (v[j] - mean) / float64(n)
	}
	for j := range v {
		y.set(0, group, row, j, (v[j]-mean)/math.Sqrt(squares+float64(l.eps))*weight.get(j)+shift.get(j))
	}
}

func fakeActivation(x float64, kind int32) float64 {
	switch Activation(kind) {
	case ReLU:
		return max(x, 0)
	case GELU:
		return x * math.Erfc(-x/math.Sqrt2) / 2
	case GELUTanh:
		return x / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	case SiLU:
		return x / (1 + math.Exp(-x))
	}
	return x
}
