package mutants

import (
	"context"
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// tile is the number of keys that a row takes in at a time.
const tile = 16

// A call is one call of one kernel.
type call struct {
	slips
	p  problem
	by float32 // the softmax scale

	js []int // workspace of scores
	s  []float32
}

func newCall(s slips, p problem) *call { return &call{slips: s, p: p, by: s.scale(p)} }

// A row is what the forward pass knows of one query row: the largest score so
// far, and the sum of the weights relative to it, bare and times V. Sums over keys
// and rows are float64, so that a long one loses nothing.
type row struct {
	m float32
	l float64
	o []float64
}

func (r *row) reset(m float32) {
	r.m, r.l = m, 0
	clear(r.o)
}

// forward walks the keys of each query row in tiles with a running maximum, and
// divides once at the end (Dao et al. 2022, algorithm 1).
func (c *call) forward(ctx context.Context, f *flashkit.Args) error {
	if err := c.refuse(c.p, f.Q); err != nil || c.idle(c.p) {
		return err
	}
	r := row{o: make([]float64, c.p.VDim)}
	for b := range c.p.Batch {
		for h := range c.p.Heads {
			g := c.kvHead(c.p, h)
			q, k, v := c.load(f.Q, b, h), c.load(f.K, b, g), c.values(c.load(f.V, b, g))
			for i := range c.rowEnd(c.p.QLen) {
				if err := ctx.Err(); err != nil {
					return err
				}
				lo, hi := c.keys(c.p, i)
				c.begin(&r, lo, hi)
				for k0, end := c.visits(i, lo, hi); k0 < end; k0 += tile {
					c.absorb(&r, q[i], k, v, k0, lo, hi)
				}
				c.finish(&r, f, b, h, i)
			}
		}
	}
	return nil
}

// visits returns where the tiles of row i, which sees [lo, hi), begin and end.
func (c *call) visits(i, lo, hi int) (k0, end int) {
	return c.first(c.p, i, lo) / tile * tile, min(hi, c.keyEnd(c.p.KVLen))
}

// absorb adds the tile of keys from k0 on to the row.
func (c *call) absorb(r *row, q []float32, k, v [][]float32, k0, lo, hi int) {
	js, s := c.scores(q, k, k0, lo, hi)
	top := negInf
	for _, x := range s {
		top = max(top, x)
	}
	m := c.raise(r.m, top)
	shift := max(m, -math.MaxFloat32) // with no score yet exp must give 0, not exp(-Inf + Inf)
	alpha := c.exp(r.m - shift)
	r.m = m
	r.l *= float64(c.rescaleL(alpha))
	for x := range r.o {
		r.o[x] *= float64(c.rescaleO(alpha))
	}
	for x := range s {
		s[x] = c.exp(s[x] - shift)
		r.l = c.sumKeys(r.l + float64(s[x]))
	}
	for x, j := range js {
		add(r.o[:c.vdim(c.p)], s[x], v[j], c.sumKeys)
	}
}

// scores returns the keys of the tile from k0 on that take part in a row that
// sees [lo, hi), and their scores.
func (c *call) scores(q []float32, k [][]float32, k0, lo, hi int) (js []int, s []float32) {
	c.js, c.s = c.js[:0], c.s[:0]
	dim := c.dim(c.p.Dim)
	for j := k0; j < min(k0+tile, c.keyEnd(len(k))); j++ {
		score, counts := c.sum(c.p.DType, dot(q[:dim], k[j]))*c.by, true
		if j < lo || j >= hi {
			score, counts = c.hidden(score, j, lo)
		}
		if counts {
			c.js, c.s = append(c.js, j), append(c.s, score)
		}
	}
	return c.js, append(c.s, c.unused(k0+tile-len(k))...)
}

// finish writes row i of head h of batch b.
func (c *call) finish(r *row, f *flashkit.Args, b, h, i int) {
	l := c.divisor(r.l)
	for x := range r.o {
		c.write(f.O, b, h, i, x, float32(r.o[x]/l))
	}
	if !f.LSE.IsZero() {
		c.write(f.LSE, b, h, i, 0, c.lse(r.m, r.l))
	}
}

// backward recomputes P from LSE and walks the same tiles (Dao et al. 2022,
// appendix B.2). All of dK and dV of a batch grow side by side, because every
// query head of a group adds to them.
func (c *call) backward(ctx context.Context, f *flashkit.Args) error {
	if err := c.refuse(c.p, f.Q); err != nil || c.idle(c.p) {
		return err
	}
	m := c.p.KVLen
	for b := range c.p.Batch {
		dk, dv := zeros[float64](c.p.KVHeads*m, c.p.Dim), zeros[float64](c.p.KVHeads*m, c.p.VDim)
		for h := range c.p.Heads {
			g := c.kvHead(c.p, h)
			if err := c.backwardHead(ctx, f, b, h, dk[g*m:][:m], dv[g*m:][:m]); err != nil {
				return err
			}
		}
		for g := range c.p.KVHeads {
			c.store(f.DK, b, g, dk[g*m:][:m])
			c.store(f.DV, b, g, dv[g*m:][:m])
		}
	}
	return nil
}

// backwardHead writes dQ of one query head and adds its part of dK and dV.
func (c *call) backwardHead(ctx context.Context, f *flashkit.Args, b, h int, dk, dv [][]float64) error {
	g := c.kvHead(c.p, h)
	q, k, v := c.load(f.Q, b, h), c.load(f.K, b, g), c.values(c.load(f.V, b, g))
	o, do := c.load(f.O, b, h), c.load(f.DO, b, h)
	dq := zeros[float64](c.rowEnd(c.p.QLen), c.p.Dim)
	c.share(dk)
	c.share(dv)
	for i := range dq {
		if err := ctx.Err(); err != nil {
			return err
		}
		lse, dlse := c.read(f.LSE, b, h, i, 0), float32(0)
		if lse == negInf { // the row sees no key
			continue
		}
		if !f.DLSE.IsZero() {
			dlse = c.read(f.DLSE, b, h, i, 0)
		}
		delta := c.delta(dot(do[i], o[i]), dlse)
		lo, hi := c.keys(c.p, i)
		for k0, end := c.visits(i, lo, hi); k0 < end; k0 += tile {
			js, s := c.scores(q[i], k, k0, lo, hi)
			for x, j := range js {
				prob := c.exp(s[x] - lse)
				ds := prob * (dot(do[i][:c.vdim(c.p)], v[j]) - delta)
				add(dv[j], prob, do[i], c.sumRows)
				add(dk[j], ds*c.dkScale(c.by), q[i], c.sumRows)
				add(dq[i], ds*c.by, k[j], c.sumKeys)
			}
		}
	}
	c.store(f.DQ, b, h, dq)
	return nil
}

// load returns the rows of one head.
func (c *call) load(t tensor, b, h int) [][]float32 {
	x := zeros[float32](t.Shape()[2], t.Shape()[3])
	for r := range x {
		for i := range x[r] {
			x[r][i] = c.read(t, b, h, r, i)
		}
	}
	return x
}

func (c *call) store(t tensor, b, h int, x [][]float64) {
	for r := range x {
		for i := range x[r] {
			c.write(t, b, h, r, i, float32(x[r][i]))
		}
	}
}

func (c *call) read(t tensor, b, h, r, i int) float32 {
	switch at := c.offset(t, b, h, r) + i; t.DType() {
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

// dot and add go as far as their shorter first argument.
func dot(x, y []float32) (sum float32) {
	for i := range x {
		sum += x[i] * y[i]
	}
	return sum
}

func add(sum []float64, w float32, x []float32, keep func(float64) float64) {
	for i := range sum {
		sum[i] = keep(sum[i] + float64(w*x[i]))
	}
}
