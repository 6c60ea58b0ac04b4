package mutants

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// int8Mistakes are mistakes in int8 keys and values.
var int8Mistakes = []mistake{
	{"int8_unsigned", coded(func(x int8) float32 { return float32(uint8(x)) })},
	{"int8_k_scale", rescaled(func(s float32, of scaleOf) float32 {
		if of.isV {
			return s
		}
		return 1. / 64
	})},
	{"int8_v_scale", rescaled(func(s float32, of scaleOf) float32 {
		if of.isV {
			return 1. / 64
		}
		return s
	})},
	{"int8_same_scale", placed(func(of scaleOf) scaleOf { of.isV = false; return of })},
	{"int8_group", placed(func(of scaleOf) scaleOf { of.element = 0; return of })},
	{"int8_group_64", placed(func(of scaleOf) scaleOf { of.element /= 2; return of })},
	{"int8_short_group", placed(func(of scaleOf) scaleOf {
		if of.element >= of.dim/of.group*of.group {
			of.element = max(0, of.element-of.group)
		}
		return of
	})},
	{"int8_v_dim", placed(func(of scaleOf) scaleOf {
		if of.isV {
			of.row *= 3
		}
		return of
	})},
	{"int8_row", placed(func(of scaleOf) scaleOf { of.row, of.key = 0, 0; return of })},
	{"int8_head", placed(func(of scaleOf) scaleOf { of.head = 0; return of })},
	{"int8_query_head", placed(func(of scaleOf) scaleOf { of.head *= 2; return of })},
	{"int8_batch", placed(func(of scaleOf) scaleOf { of.batch = 0; return of })},
	{"int8_packed", placed(func(of scaleOf) scaleOf { of.row = of.key; return of })},
	{"int8_page", placed(func(of scaleOf) scaleOf { of.batch, of.row = of.key/4, of.key%4; return of })},
	{"int8_f16_scale", func(s *faults) {
		s.scaleAt = func(t tensor, at int) float32 {
			if t.DType() == flashkit.Float16 {
				return roundedTo(flashkit.BFloat16, value(t, at))
			}
			return value(t, at)
		}
	}},
	{"int8_f32_scale", rescaled(func(s float32, _ scaleOf) float32 { return roundedTo(flashkit.Float16, s) })},
	{"int8_zero_scale", rescaled(func(s float32, _ scaleOf) float32 { return 1 / (1 / s) * (s / s) })},
	{"int8_lowest", coded(func(x int8) float32 { return float32(max(x, -127)) })},
	{"int8_nan_scale", func(s *faults) {
		s.hidden = func(score float32, _, _ int) (float32, bool) { return negInf, true }
	}},
	{"int8_query", func(s *faults) {
		s.query = func(c *call, q []float32) []float32 {
			rounded := make([]float32, len(q))
			for i := range q {
				rounded[i] = roundedTo(flashkit.BFloat16, q[i])
			}
			return rounded
		}
	}},
	{"int8_large_query", func(s *faults) {
		s.query = func(c *call, q []float32) []float32 {
			top, rounded := float32(0), make([]float32, len(q))
			for _, x := range q {
				top = max(top, x, -x)
			}
			for i := range q {
				rounded[i] = float32(math.Round(float64(q[i]/top*(1<<15)))) * top / (1 << 15)
			}
			return rounded
		}
	}},
	{"int8_bias", func(s *faults) {
		s.bias = func(c *call, t tensor, at int) float32 { return value(t, at) / 64 }
	}},
	{"int8_tile", placed(func(of scaleOf) scaleOf { of.row = of.row / tile * tile; return of })},
}

// A scaleOf is the place of an element of K or V: key counts in the sequence, and batch and row in
// the tensor.
type scaleOf struct {
	isV                                        bool
	batch, head, row, key, element, dim, group int
}

// rescaled returns a mistake that changes a scale.
func rescaled(by func(s float32, of scaleOf) float32) func(*faults) {
	return func(s *faults) { s.scaled = by }
}

// placed returns a mistake that takes the scale of another element.
func placed(of func(scaleOf) scaleOf) func(*faults) {
	return func(s *faults) { s.scalePlace = of }
}

// coded returns a mistake that changes an int8 element.
func coded(of func(int8) float32) func(*faults) {
	return func(s *faults) { s.code = of }
}

// int8Row returns the elements of a row of K or V.
func (c *call) int8Row(x []float32, t tensor, at int, of scaleOf) {
	of.isV, of.dim, of.group = t == c.args.V && t != c.args.K, len(x), c.p.Int8Group
	for i := range x {
		of.element = i
		x[i] = c.code(t.Int8s()[at+i]) * c.scaled(c.scaleFor(of), of)
	}
}

// scaleFor returns the scale of an element. An index beyond the memory counts as the last.
func (c *call) scaleFor(of scaleOf) float32 {
	of = c.scalePlace(of)
	t := c.args.KScale
	if of.isV {
		t = c.args.VScale
	}
	at := t.Offset(of.batch, of.head, of.row) + of.element/of.group
	return c.scaleAt(t, min(at, t.Len()-1))
}
