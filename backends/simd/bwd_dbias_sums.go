//go:build (amd64 || arm64) && !purego

package simd

import (
	"context"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// biasSum holds the sums of a DBias with shared elements, from one row and one key on. A sum may
// consist of runs, float32 partial sums of biasRun blocks each.
type biasSum struct {
	sum      []float32 // sums of the current run
	step     int       // distance between rows of sum
	past     []float32 // sums of finished runs; nil if there is one run
	pastStep int
}

// biasSum returns the sums of batch entry b and head h of dBias, from row number row and key k on.
func (j *job) biasSum(b, h, row, k int) (x biasSum) {
	t := &j.args.DBias
	s := t.Shape()
	if t.DType() == flashkit.Float32 {
		x.sum, x.step = t.Float32s()[t.Offset(b, h, row)+k:], t.Strides()[2]
	}
	if j.biasSums() > 0 {
		x.past, x.pastStep = j.Shared.All[((b*s[1]+h)*s[2]+row)*s[3]+k:], s[3]
	}
	if x.sum == nil {
		x.sum, x.step, x.past = x.past, x.pastStep, nil
	}
	return x
}

// endRun adds the current run's sums to the sums of the finished runs, for the given numbers of
// rows and keys. It then sets the current run's sums to 0.
func (x *biasSum) endRun(rows, keys int) {
	for r := range rows {
		sum := x.sum[r*x.step:][:keys]
		for i, y := range sum {
			x.past[r*x.pastStep+i] += y
		}
		clear(sum)
	}
}

// keySums returns the sums of a dBias of kind rowBias, [batches][heads][keys].
func (j *job) keySums() []float64 { return doubles(j.Shared.All[:j.biasSums()]) }

// biasItem returns the batch entry, the head and the rows [from, to) of dBias that an item clears
// or writes.
func (j *job) biasItem(item int) (b, h, from, to int) {
	s := j.args.DBias.Shape()
	per := ceilDiv(s[2], j.rows)
	from = item % per * j.rows
	return item / per / s[1], item / per % s[1], from, min(from+j.rows, s[2])
}

// beginDBias zeros dBias where blocks of keys will add to it, and where no block will write it.
func (j *job) beginDBias(ctx context.Context) {
	if n := j.biasItems(); n > 0 {
		j.parallel(ctx, beginDBias, pool.Phase{Items: n})
	}
}

func beginDBias(j *job, _ *pool.Arena, item int) {
	t, kind := &j.args.DBias, j.biasKind()
	b, h, from, to := j.biasItem(item)
	width := t.Shape()[3]
	switch kind {
	case rowBias:
		clear(j.keySums()[(b*t.Shape()[1]+h)*width:][:width])
	case pairBias:
		for i := from; i < to && width > 0; i++ {
			x := j.biasSum(b, h, i, 0)
			clear(x.sum[:width])
			if x.past != nil {
				clear(x.past[:width])
			}
		}
	case ownBias:
		x := j.tileOf(b, h, h/(j.p.Heads/j.p.KVHeads))
		j.clearUnvisited(&x, from, min(to, x.N))
		for i := from; i < to; i++ {
			met := x.M
			if i >= x.N {
				met = 0
			}
			clearElements(t, t.Offset(b, h, i)+met, width-met)
		}
	}
}

// clearUnvisited zeros dBias of a tile, rows [from, to), for the keys of all blocks that do not
// visit the tile.
func (j *job) clearUnvisited(x *seqTile, from, to int) {
	begin := 0
	for k := 0; k < x.M; k += j.keys {
		y := *x
		y.setKeys(&j.plan, k, j.keys)
		first, end := j.visited(&y)
		if tile := from / j.rows; first <= tile && tile < end {
			j.clearDBias(x, from, to, begin, k)
			begin = y.to
		}
	}
	j.clearDBias(x, from, to, begin, x.M)
}

// clearDBias zeros dBias of rows [from, to) and keys [k0, k1) of a head.
func (j *job) clearDBias(x *seqTile, from, to, k0, k1 int) {
	t := &j.args.DBias
	for i := from; i < to; i++ {
		clearElements(t, t.Offset(x.b, x.h, i)+k0, k1-k0)
	}
}

// endDBias writes the tensor of dBias from sums in workspace, if there are such sums.
func (j *job) endDBias(ctx context.Context) {
	if j.biasSums() > 0 {
		j.parallel(ctx, endDBias, pool.Phase{Items: j.biasItems(), Floats: biasPart})
	}
}

func endDBias(j *job, ws *pool.Arena, item int) {
	t := &j.args.DBias
	b, h, from, to := j.biasItem(item)
	width := t.Shape()[3]
	if j.biasKind() == rowBias {
		part := ws.Take(biasPart)
		for k := 0; k < width; k += len(part) {
			n := min(len(part), width-k)
			for i, x := range j.keySums()[(b*t.Shape()[1]+h)*width+k:][:n] {
				part[i] = float32(x)
			}
			store(t, t.Offset(b, h, 0)+k, part[:n])
		}
		return
	}
	for i := from; i < to && width > 0; i++ {
		x := j.biasSum(b, h, i, 0)
		if x.past == nil {
			store(t, t.Offset(b, h, i), x.sum[:width])
			continue
		}
		for k, y := range x.past[:width] {
			x.sum[k] += y
		}
	}
}
