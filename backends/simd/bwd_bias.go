package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
	"github.com/flashkit-go/flashkit/internal/half"
)

// scatter writes x to the elements of t at the offsets first+at[i].
func scatter(t *flashkit.Tensor, first int, at []int, x []float32) {
	switch t.DType() {
	case flashkit.Float32:
		for c, i := range at {
			t.Float32s()[first+i] = x[c]
		}
	case flashkit.Float16:
		for c, i := range at {
			t.Uint16s()[first+i] = half.ToF16(x[c])
		}
	case flashkit.BFloat16:
		for c, i := range at {
			t.Uint16s()[first+i] = half.ToBF16(x[c])
		}
	}
}

// biasTile is a tile of query rows and keys in one head of one batch entry of DBias. All sequences
// share the elements of DBias if its first dimension has length 1. All heads share the elements if
// the second dimension has length 1. All query rows share them if the third dimension has length 1.
// An element's terms are summed in runs, float32 partial sums of at least portableRun terms.
type biasTile struct {
	rowSum    bool // all query rows share the tile's one row
	from, to  int  // rows of DBias
	k0, k1    int
	run, past []float32 // [rows][keys], sums of the current run and of the finished runs
	runRows   int       // number of terms of an element in the current run
}

// biasTile writes one tile of a DBias whose elements are shared. Each element is a sum of gradients
// over all sequences, heads and query rows that share the element. The order is by sequence, then
// by head, then by query row.
func (j *job) biasTile(ws *pool.Arena, item int) {
	c, d := j.call, &j.args.DBias
	s := d.Shape()
	b0, h0, r0, k0 := item%s[0], item/s[0]%s[1], item/s[0]/s[1]%ceilDiv(s[2], tileQ)*tileQ, item/s[0]/s[1]/ceilDiv(s[2], tileQ)*tileK
	t := biasTile{rowSum: s[2] == 1, from: r0, to: min(r0+tileQ, s[2]), k0: k0, k1: min(k0+tileK, s[3])}
	var x gradPairs
	x.begin(j, ws)
	keys := t.k1 - t.k0
	t.run, t.past = twoSums(ws, (t.to-t.from)*keys)
	b1, h1 := b0+1, h0+1
	if s[0] == 1 {
		b1 = c.Batch
	}
	if s[1] == 1 {
		h1 = c.Heads
	}
	for b := b0; b < b1 && c.QLen > 0; b++ {
		if j.Canceled() {
			return
		}
		seq := c.Seq(b)
		if seq.N == 0 || seq.M <= k0 {
			continue
		}
		for h := h0; h < h1; h++ {
			if !j.addBias(&t, &x, &seq, b, h) {
				return
			}
		}
	}
	addRun(t.run, t.past)
	for r := range t.to - t.from {
		store(d, d.Offset(b0, h0, r0+r)+k0, t.run[r*keys:][:keys])
	}
}

// addBias adds the gradients of query head h of sequence b to the tile. It returns false if the call
// was canceled.
func (j *job) addBias(t *biasTile, x *gradPairs, seq *flashkit.Seq, b, h int) bool {
	k1, keys := min(t.k1, seq.M), t.k1-t.k0
	first, _ := seq.Queries(t.k0)
	_, last := seq.Queries(k1 - 1)
	if !t.rowSum {
		first, last = max(first, t.from), min(last, t.to)
	}
	if first >= last {
		return true
	}
	x.keys.load(j, seq, b, h/(j.p.Heads/j.p.KVHeads), t.k0, k1-t.k0)
	for q0 := first; q0 < last; q0 += tileQ {
		q1 := min(q0+tileQ, last)
		x.setRows(j, seq, b, h, q0, q1)
		for i := q0; i < q1; i++ {
			if j.Canceled() {
				return false
			}
			lo, hi := seq.Keys(i)
			seen, _, ds := x.pairs(i, i-q0, t.k0, max(lo, t.k0), min(hi, k1))
			row := t.run
			if !t.rowSum {
				row = t.run[(i-t.from)*keys:]
			}
			for c, key := range seen {
				row[key] += ds[c]
			}
		}
		t.endOf(q1 - q0)
	}
	return true
}

// endOf ends the current run, a float32 partial sum, if the run has at least portableRun terms of
// each element. rows is the number of query rows that were just added.
func (t *biasTile) endOf(rows int) {
	if !t.rowSum {
		rows = 1
	}
	if t.runRows += rows; t.runRows >= portableRun {
		addRun(t.past, t.run)
		t.runRows = 0
	}
}

// sinkGradient writes DSink of head h. This gradient is -Σ delta·w over all query rows, where w is
// the softmax weight of the sink.
func (j *job) sinkGradient(ws *pool.Arena, h int) {
	c, f := j.call, j.args
	sink := j.sinkOf(h)
	x := newGradTile(j, ws)
	sum := 0.0
	for b := 0; b < c.Batch && c.QLen > 0; b++ {
		seq := c.Seq(b)
		for q0 := 0; q0 < seq.N; q0 += tileQ {
			if j.Canceled() {
				return
			}
			n := min(tileQ, seq.N-q0)
			x.load(j, seq.QBatch, h, seq.Q0+q0, n)
			for i := range n {
				if lse := float64(x.lse[i]); !math.IsInf(lse, -1) {
					sum -= float64(scalar.Exp(sink-lse)) * float64(x.delta[i])
				}
			}
		}
	}
	f.DSink.Float32s()[f.DSink.Offset(0, h, 0)] = float32(sum)
}
