package mutants

import (
	"context"
	"math"

	"github.com/flashkit-go/flashkit"
)

// tile is the number of keys in a tile.
const tile = 16

// A call is the state of a kernel call. The call computes one sequence after the other. b, seq and
// p describe the current sequence.
type call struct {
	faults
	c    *flashkit.Call
	args *flashkit.Args
	by   float32 // softmax scale

	b   int // current sequence
	seq flashkit.Seq
	p   problem // the problem with the lengths of the sequence

	js       []int // workspace: the keys of a tile, their scores, and the derivatives of the softcap
	s, slope []float32
}

func newCall(s faults, c *flashkit.Call) *call {
	return &call{faults: s, c: c, args: c.Args, by: s.scale(c.Problem), p: c.Problem}
}

// A pair is a row and a key of one head: batch b, query head h, row i, key j.
type pair struct{ b, h, i, j int }

// A row is the forward pass's state of one query row. m is the running maximum. l is the sum of the
// weights relative to m. o is the sum of these weights times V. Sums over keys and rows are
// float64, so that long sums are accurate enough.
type row struct {
	m   float32
	l   float64
	o   []float64
	top float32 // the largest score of the row's keys
}

func (r *row) reset(m float32) {
	r.m, r.l, r.top = m, 0, negInf
	clear(r.o)
}

// enter sets the current sequence to b.
func (c *call) enter(b int) {
	c.b, c.seq = b, c.sequence(c.c, b)
	c.p.QLen, c.p.KVLen = c.seq.N, c.seq.M
}

// forward processes the keys of each query row in tiles, with a running maximum. It divides O by l
// once at the end (Dao et al. 2022, algorithm 1).
func (c *call) forward(ctx context.Context) error {
	f := c.args
	if err := c.refuse(c.p, f.Q); err != nil || c.idle(c.p) {
		return err
	}
	r := row{o: make([]float64, c.p.VDim)}
	for b := range c.c.Batch {
		c.enter(b)
		for h := range c.p.Heads {
			g := c.kvHead(c.p, h)
			q, k, v := c.queries(f.Q, h), c.keyRows(f.K, g), c.values(c.keyRows(f.V, g))
			mass := make([]float64, c.p.KVLen)
			for i := range c.rowEnd(c.p.QLen) {
				if err := ctx.Err(); err != nil {
					return err
				}
				at := pair{b: b, h: h, i: i}
				lo, hi := c.visible(i)
				c.begin(&r, lo, hi)
				c.open(&r, at)
				for k0, end := c.visits(i, lo, hi); k0 < end; k0 += tile {
					c.absorb(&r, at, q[i], k, v, k0, lo, hi)
				}
				c.finish(&r, at)
				c.weighKeys(mass, &r, at, q[i], k, lo, hi)
			}
			c.storeMass(mass, h)
		}
		c.pad("O", f.O, c.seq.QBatch, c.seq.N, f.Seqs != nil && f.Seqs.QStarts != nil, 0)
		c.pad("LSE", f.LSE, c.seq.QBatch, c.seq.N, f.Seqs != nil && f.Seqs.QStarts != nil, negInf)
		c.pad("RowMax", f.RowMax, c.seq.QBatch, c.seq.N, f.Seqs != nil && f.Seqs.QStarts != nil, negInf)
	}
	return nil
}

// visible returns the range [lo, hi) of keys in the band of row i. The mask may hide some of these
// keys.
func (c *call) visible(i int) (lo, hi int) {
	lo, hi = c.keys(c.aligned(c), i)
	return min(lo, c.p.KVLen), min(hi, c.p.KVLen)
}

// visits returns the range of keys that the tiles of row i cover. Row i sees keys [lo, hi).
func (c *call) visits(i, lo, hi int) (k0, end int) {
	return c.first(c.p, i, lo) / tile * tile, min(hi, c.keyEnd(c.p.KVLen))
}

// open adds the sink and the result over earlier keys to the row.
func (c *call) open(r *row, at pair) {
	if c.p.Score.Sink {
		c.sink(c, r, at)
	}
	if c.p.Carry {
		c.carry(c, r, at)
	}
}

// take adds one score with value v to the row. v is nil for a score without a value, such as the
// sink.
func (c *call) take(r *row, s float32, v []float32) {
	m := max(r.m, s)
	shift := c.guard(m)
	alpha, w := c.exp(r.m-shift), c.exp(s-shift)
	r.m, r.l = m, r.l*float64(alpha)+float64(w)
	for x := range r.o {
		r.o[x] *= float64(alpha)
	}
	add(r.o[:len(v)], w, v, c.sumKeys)
}

// absorb adds the tile of keys that begins at k0 to the row.
func (c *call) absorb(r *row, at pair, q []float32, k, v [][]float32, k0, lo, hi int) {
	js, s := c.scores(at, q, k, k0, lo, hi)
	top := negInf
	for _, x := range s {
		top = max(top, x)
	}
	r.top = c.higher(r, top)
	m := c.raise(r.m, top)
	shift := c.guard(m)
	alpha := c.exp(r.m - shift)
	r.m = m
	r.l *= float64(c.rescaleL(alpha))
	for x := range r.o {
		r.o[x] *= float64(c.rescaleO(alpha))
	}
	for x := range s {
		s[x] = c.exp(s[x] - shift)
		if x < len(js) {
			at.j = js[x]
		}
		r.l = c.sumKeys(r.l + float64(c.counted(c, s[x], at)))
	}
	for x, j := range js {
		at.j = j
		add(r.o[:c.vdim(c.p)], c.weight(c, s[x]*c.keep(c, at)), v[j], c.sumKeys)
	}
}

// scores returns the visible keys of the tile that begins at k0, and their scores. The row sees
// keys [lo, hi).
func (c *call) scores(at pair, q []float32, k [][]float32, k0, lo, hi int) (js []int, s []float32) {
	c.js, c.s, c.slope = c.js[:0], c.s[:0], c.slope[:0]
	dim := c.dim(c.p.Dim)
	q = c.query(c, q)
	for j := k0; j < min(k0+tile, c.keyEnd(len(k))); j++ {
		at.j = j
		score, slope := c.score(c, c.sum(c.p.DType, dot(q[:dim], k[j]))*c.by, at)
		counts := true
		if j < lo || j >= hi {
			score, counts = c.hidden(score, j, lo)
		} else if c.outside(at) || c.p.Score.Mask && !c.shown(c, at) {
			score, counts = c.masked(c, score)
		}
		if counts {
			c.js, c.s, c.slope = append(c.js, j), append(c.s, score), append(c.slope, slope)
		}
	}
	return c.js, append(c.s, c.unused(k0+tile-len(k))...)
}

// finish writes O and LSE of the row.
func (c *call) finish(r *row, at pair) {
	c.end(c, r, at)
	l, f := c.divisor(r.l), c.args
	for x := range r.o {
		c.write(f.O, c.seq.QBatch, at.h, c.seq.Q0+at.i, x, float32(r.o[x]/l))
	}
	if c.p.RowMax {
		c.write(f.RowMax, c.seq.QBatch, at.h, c.seq.Q0+at.i, 0, c.peak(c, r, at))
	}
	if !f.LSE.IsZero() {
		c.settle(c, r, at)
		c.write(f.LSE, c.seq.QBatch, at.h, c.seq.Q0+at.i, 0, c.lse(r.m, r.l))
	}
}

// gradients are the sums that cover all sequences: dBias by element and dSink by head.
type gradients struct {
	bias map[pair]float64
	sink []float64
}

// backward recomputes P from LSE over the same tiles as forward (Dao et al. 2022, appendix B.2). It
// keeps the sums of dK and dV for a whole sequence, because every query head of a group adds to
// them.
func (c *call) backward(ctx context.Context) error {
	f := c.args
	if err := c.refuse(c.p, f.Q); err != nil || c.idle(c.p) {
		return err
	}
	sums := gradients{map[pair]float64{}, make([]float64, c.p.Heads)}
	for b := range c.c.Batch {
		c.enter(b)
		m := c.p.KVLen
		dk, dv := zeros[float64](c.p.KVHeads*m, c.p.Dim), zeros[float64](c.p.KVHeads*m, c.p.VDim)
		for h := range c.p.Heads {
			g := c.kvHead(c.p, h)
			if err := c.backwardHead(ctx, pair{b: b, h: h}, &sums, dk[g*m:][:m], dv[g*m:][:m]); err != nil {
				return err
			}
		}
		for g := range c.p.KVHeads {
			c.store(f.DK, c.seq.KVBatch, g, c.seq.K0, dk[g*m:][:m])
			c.store(f.DV, c.seq.KVBatch, g, c.seq.K0, dv[g*m:][:m])
		}
		c.pad("DQ", f.DQ, c.seq.QBatch, c.seq.N, f.Seqs != nil && f.Seqs.QStarts != nil, 0)
		c.pad("DK", f.DK, c.seq.KVBatch, c.seq.M, f.Seqs != nil && f.Seqs.KVStarts != nil, 0)
		c.pad("DV", f.DV, c.seq.KVBatch, c.seq.M, f.Seqs != nil && f.Seqs.KVStarts != nil, 0)
	}
	c.storeSums(&sums)
	return nil
}

// backwardHead writes dQ of query head at.h. It adds the head's part to sums, dk and dv.
func (c *call) backwardHead(ctx context.Context, at pair, sums *gradients, dk, dv [][]float64) error {
	f, b, h := c.args, c.seq.QBatch, at.h
	g := c.kvHead(c.p, h)
	q, k, v := c.queries(f.Q, h), c.keyRows(f.K, g), c.values(c.keyRows(f.V, g))
	o, do := c.queries(f.O, h), c.queries(f.DO, h)
	dq := zeros[float64](c.rowEnd(c.p.QLen), c.p.Dim)
	c.share(dk)
	c.share(dv)
	for i := range dq {
		if err := ctx.Err(); err != nil {
			return err
		}
		lse, dlse := c.read(f.LSE, b, h, c.seq.Q0+i, 0), float32(0)
		if lse == negInf { // no key has a weight in this row
			continue
		}
		if !f.DLSE.IsZero() {
			dlse = c.read(f.DLSE, b, h, c.seq.Q0+i, 0)
		}
		at.i = i
		delta := c.delta(c, dot(do[i], o[i]), dlse)
		if c.p.Score.Sink {
			sums.sink[h] = c.sumMore(sums.sink[h] + float64(c.dsink(c, at, c.exp(c.logit(h)-lse), dot(do[i], o[i]), dlse)))
		}
		lo, hi := c.visible(i)
		for k0, end := c.visits(i, lo, hi); k0 < end; k0 += tile {
			js, s := c.scores(at, q[i], k, k0, lo, hi)
			for x, j := range js {
				at.j = j
				prob, slope := c.exp(s[x]-c.past(lse)), c.slope[x]
				ds := prob * (dot(do[i][:c.vdim(c.p)], v[j])*c.keepDP(c, at) - delta)
				if c.p.Score.Bias {
					to := c.dbiasAt(at)
					sums.bias[to] = c.sumMore(sums.bias[to] + float64(c.dbias(c, at, ds, slope)))
				}
				ds *= slope
				add(dv[j], prob*c.keepDV(c, at), do[i], c.sumRows)
				add(dk[j], ds*c.dkScale(c.by), q[i], c.sumRows)
				add(dq[i], ds*c.by, k[j], c.sumKeys)
			}
		}
	}
	c.store(f.DQ, b, h, c.seq.Q0, dq)
	return nil
}

// dot loops over the elements of x; y may be longer. add loops over the elements of sum; x may be
// longer.
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

var negInf = float32(math.Inf(-1))
