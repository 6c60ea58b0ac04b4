package mutants

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// queries returns the rows of query head h of the current sequence.
func (c *call) queries(t tensor, h int) [][]float32 {
	x := zeros[float32](c.seq.N, t.Shape()[3])
	for r := range x {
		c.load(x[r], t, c.offset(t, c.seq.QBatch, h, c.seq.Q0+r))
	}
	return x
}

// keyRows returns the rows of KV head g of the current sequence.
func (c *call) keyRows(t tensor, g int) [][]float32 {
	x := zeros[float32](c.seq.M, t.Shape()[3])
	for j := range x {
		batch, r := c.seq.KVBatch, c.seq.K0+j
		if c.p.Page != 0 {
			batch, r = c.page(c.c, c.b, j)
		}
		at := c.offset(t, batch, g, r)
		if t.DType() == flashkit.Int8 {
			c.int8Row(x[j], t, at, scaleOf{batch: batch, head: g, row: r, key: j})
			continue
		}
		for i := range x[j] {
			x[j][i] = c.kv(t, at+i)
		}
	}
	return x
}

func (c *call) load(x []float32, t tensor, at int) {
	for i := range x {
		x[i] = value(t, at+i)
	}
}

func (c *call) store(t tensor, b, h, from int, x [][]float64) {
	for r := range x {
		for i := range x[r] {
			c.write(t, b, h, from+r, i, float32(x[r][i]))
		}
	}
}

// pad fills row n and all later rows of batch b of an output with x, in all heads.
func (c *call) pad(name string, t tensor, b, n int, packed bool, x float32) {
	if t.IsZero() || !c.pads(c, name, packed) {
		return
	}
	for h := range t.Shape()[1] {
		for r := n; r < t.Shape()[2]; r++ {
			for i := range t.Shape()[3] {
				c.write(t, b, h, r, i, x)
			}
		}
	}
}

// dbiasAt returns the indices of the DBias element to which a pair contributes.
func (c *call) dbiasAt(at pair) pair {
	for d, x := range [...]*int{&at.b, &at.h, &at.i} {
		if c.args.Bias.Shape()[d] == 1 {
			*x = 0
		}
	}
	return at
}

// storeSums writes DBias and DSink if the caller passed them.
func (c *call) storeSums(sums *gradients) {
	if t := c.args.DBias; !t.IsZero() {
		n := t.Shape()
		for b := range n[0] {
			for h := range n[1] {
				for i := range n[2] {
					c.row(t, c.offset(t, b, h, i))
					for j := range n[3] {
						at := pair{b, h, i, j}
						if x := sums.bias[at]; c.writes(c, at, x) {
							c.write(t, b, h, i, j, float32(x))
						}
					}
				}
			}
		}
	}
	if t := c.args.DSink; !t.IsZero() {
		for h, x := range sums.sink {
			c.write(t, 0, h, 0, 0, float32(x))
		}
	}
}

func (c *call) read(t tensor, b, h, r, i int) float32 { return value(t, c.offset(t, b, h, r)+i) }

func value(t tensor, at int) float32 {
	switch t.DType() {
	case flashkit.Float16:
		return half.FromF16(t.Uint16s()[at])
	case flashkit.BFloat16:
		return half.FromBF16(t.Uint16s()[at])
	default:
		return t.Float32s()[at]
	}
}

func (c *call) write(t tensor, b, h, r, i int, x float32) {
	switch at := c.offset(t, b, h, r) + i; t.DType() {
	case flashkit.Float16:
		t.Uint16s()[at] = half.ToF16(x)
	case flashkit.BFloat16:
		t.Uint16s()[at] = half.ToBF16(x)
	default:
		t.Float32s()[at] = x
	}
}

func zeros[F float32 | float64](rows, dim int) [][]F {
	x := make([][]F, rows)
	for r := range x {
		x[r] = make([]F, dim)
	}
	return x
}
