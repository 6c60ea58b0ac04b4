//go:build (amd64 || arm64) && !purego

package simd

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// Rows of biases and of dBias are far apart in memory, each in its own page if they are long. So
// these rows need prefetches. The prefetches for a tile run between the dot products of the tile
// before. Only a few rows are prefetched at a time, because page walks take long, and few cache
// lines can be in flight.

const fetchRows = 24 // rows of dot products at a time: whole register tiles for all instruction sets

type scoresFunc func(s, k *float32, step int, q *float32, dim, keys int, rowMax, ahead *float32)

// rowFetch is parts of rows to prefetch into L2.
type rowFetch struct {
	from              unsafe.Pointer
	step, bytes, left int // bytes between rows and bytes per row; rows left
}

// partOf returns n rows of a tensor, step elements apart, from offset at on. It takes the given
// number of elements of each row.
func partOf(t *flashkit.Tensor, at, step, n, elements int) rowFetch {
	x := rowFetch{step: step * t.DType().Size(), bytes: elements * t.DType().Size(), left: n}
	if t.DType() == flashkit.Float32 {
		x.from = unsafe.Pointer(&t.Float32s()[at])
	} else {
		x.from = unsafe.Pointer(&t.Uint16s()[at])
	}
	return x
}

// setFetch queues the prefetch of bias and dBias for the tile after tile t of head h. The
// prefetches are spread over the dot products of the current tile.
func (g *gradScore) setFetch(j *job, x *keyRange, h, t int) {
	g.fetch = [2]rowFetch{}
	h, t, ok := j.after(x, h, t)
	if !ok {
		return
	}
	from := t * j.rows
	n, keys := min(j.rows, x.N-from), x.to-x.from
	if b := &j.args.Bias; rowStep(b) != 0 {
		g.fetch[0] = partOf(b, b.Repeated(x.b, h, from)+x.from, rowStep(b), n, keys)
	}
	if d := &j.args.DBias; g.db.kind == ownBias || g.db.kind == pairBias {
		s := d.Shape()
		g.fetch[1] = partOf(d, d.Offset(x.b%s[0], h%s[1], from)+x.from, rowStep(d), n, keys)
	}
	g.fetchEach = ceilDiv(n, g.parts*2*ceilDiv(keys, g.isa.lanes))
}

// fetching reports whether rows are left to prefetch.
func (g *gradScore) fetching() bool { return g.fetch[0].left > 0 || g.fetch[1].left > 0 }

// fetchSome prefetches fetchEach rows.
func (g *gradScore) fetchSome() {
	for i := range g.fetch {
		f := &g.fetch[i]
		if n := min(g.fetchEach, f.left); n > 0 {
			g.isa.fetch((*byte)(f.from), f.step, f.bytes, n)
			if f.left -= n; f.left > 0 {
				f.from = unsafe.Add(f.from, n*f.step)
			}
		}
	}
}

// dots sets s to the dot products of n rows with a panel. It takes fetchRows rows at a time if
// biases are prefetched in between.
func (x *keyBlock) dots(scores scoresFunc, s, rows []float32, step int, panel []float32, dim, n int) {
	most := n
	if x.score.fetching() {
		most = fetchRows
	}
	for r := 0; r < n; r += most {
		most := min(most, n-r)
		scores(&s[r*len(x.top)], &rows[r*step], step, &panel[0], dim, most, &x.top[0], x.ahead.take(most, dim, &rows[r*step]))
		x.score.fetchSome()
	}
}

// copyPanel copies n rows of a panel to rows of dst, which are step elements apart.
func (isa *laneRoutines) copyPanel(dst []float32, step int, panel []float32, n int) {
	isa.setPanel(&dst[0], step, &panel[0], n)
}

// addRowsOf adds n rows of a panel to rows of dst, which are step elements apart.
func (isa *laneRoutines) addRowsOf(dst []float32, step int, panel []float32, n int) {
	isa.accumulateRows(&dst[0], step, &panel[0], n)
}
