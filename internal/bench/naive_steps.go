package bench

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/input"
)

// keyTiles calls f for each tile of keys and each row i of t that sees keys of this tile. Of the
// tile's keys, row i sees [lo, hi), as indices of the sequence's keys. keyTiles visits all rows
// before the next tile, so that the tile of K or V stays in the cache.
func (n *naive) keyTiles(t rowTile, f func(i, lo, hi int)) {
	for from := 0; from < n.KVLen; from += naiveTile {
		for i := t.from; i < t.to; i++ {
			lo, hi := n.Keys(i)
			if lo, hi = max(lo, from), min(hi, from+naiveTile); lo < hi {
				f(i, lo, hi)
			}
		}
	}
}

// products sets c[i][j] to by·(x_i·y_j) if row i sees key j, and to hidden otherwise.
func (n *naive) products(t rowTile, c, x, y []float32, dim int, by, hidden float32) {
	m := n.KVLen
	for i := n.row(t, t.from) * m; i < n.row(t, t.to)*m; i++ {
		c[i] = hidden
	}
	keys := y[n.keyRow(t.b, t.kvHead, 0)*dim:]
	n.keyTiles(t, func(i, lo, hi int) {
		row := n.row(t, i)
		dots(c[row*m+lo:row*m+hi], x[row*dim:(row+1)*dim], keys[lo*dim:hi*dim], by)
	})
}

// scores computes S.
func (n *naive) scores(t rowTile) {
	n.products(t, n.s, n.q, n.k, n.Dim, n.scale, float32(math.Inf(-1)))
}

// softmax computes P and LSE.
func (n *naive) softmax(t rowTile) {
	for i := t.from; i < t.to; i++ {
		s, p := n.matrixRow(n.s, t, i), n.matrixRow(n.p, t, i)
		lo, hi := n.Keys(i)
		most, sum := math.Inf(-1), 0.
		for _, x := range s[lo:hi] {
			most = max(most, float64(x))
		}
		clear(p)
		for j := lo; j < hi; j++ {
			e := math.Exp(float64(s[j]) - most)
			p[j] = float32(e)
			sum += e
		}
		for j := lo; j < hi; j++ {
			p[j] = float32(float64(p[j]) / sum)
		}
		if lse := n.args.LSE; !lse.IsZero() {
			lse.Float32s()[lse.Offset(t.b, t.h, i)] = float32(most + math.Log(sum)) // -Inf without keys
		}
	}
}

// values computes O.
func (n *naive) values(t rowTile) { n.weighted(t, n.p, n.v, n.VDim, 1, n.args.O) }

// weighted sets row i of out to by·Σ c[i][j] y_j, over visible keys j.
func (n *naive) weighted(t rowTile, c, y []float32, dim int, by float32, out flashkit.Tensor) {
	sums, part := make([]float32, (t.to-t.from)*dim), make([]float32, dim)
	keys := y[n.keyRow(t.b, t.kvHead, 0)*dim:]
	n.keyTiles(t, func(i, lo, hi int) {
		addRows(sums[(i-t.from)*dim:(i-t.from+1)*dim], part, n.matrixRow(c, t, i)[lo:hi], 1, keys[lo*dim:hi*dim])
	})
	for i := t.from; i < t.to; i++ {
		store(out, t.b, t.h, i, sums[(i-t.from)*dim:(i-t.from+1)*dim], by)
	}
}

// weights computes P from S and LSE.
func (n *naive) weights(t rowTile) {
	for i := t.from; i < t.to; i++ {
		s, p := n.matrixRow(n.s, t, i), n.matrixRow(n.p, t, i)
		lse := float64(n.lse[n.row(t, i)])
		lo, hi := n.Keys(i)
		clear(p)
		for j := lo; j < hi; j++ {
			p[j] = float32(math.Exp(float64(s[j]) - lse))
		}
	}
}

// weightGradients computes dP.
func (n *naive) weightGradients(t rowTile) { n.products(t, n.dp, n.do, n.v, n.VDim, 1, 0) }

// scoreGradients computes dS = P * (dP - (rowsum(dO * O) - dLSE)).
func (n *naive) scoreGradients(t rowTile) {
	for i := t.from; i < t.to; i++ {
		row := n.row(t, i)
		var sum [1]float32 // summed in the same order as dP: delta and dP must cancel if one key has all the weight
		dots(sum[:], n.do[row*n.VDim:(row+1)*n.VDim], n.o[row*n.VDim:(row+1)*n.VDim], 1)
		delta := sum[0]
		if d := n.args.DLSE; !d.IsZero() {
			delta -= d.Float32s()[d.Offset(t.b, t.h, i)]
		}
		p, dp, ds := n.matrixRow(n.p, t, i), n.matrixRow(n.dp, t, i), n.matrixRow(n.ds, t, i)
		lo, hi := n.Keys(i)
		for j := lo; j < hi; j++ {
			ds[j] = p[j] * (dp[j] - delta)
		}
	}
}

// queryGradients computes dQ.
func (n *naive) queryGradients(t rowTile) { n.weighted(t, n.ds, n.k, n.Dim, n.scale, n.args.DQ) }

// keyGradients computes dK and dV of a tile of keys. It sums over all query heads of KV head g, and
// over the rows that see each key.
func (n *naive) keyGradients(b, g, from, to int) {
	dk, dv := make([]float32, (to-from)*n.Dim), make([]float32, (to-from)*n.VDim)
	group, part := n.Heads/n.KVHeads, make([]float32, max(n.Dim, n.VDim))
	for h := g * group; h < (g+1)*group; h++ {
		first := (b*n.Heads + h) * n.QLen
		for tile := 0; tile < n.QLen; tile += naiveTile {
			for j := from; j < to; j++ {
				lo, hi := n.Queries(j)
				if lo, hi = first+max(lo, tile), first+min(hi, tile+naiveTile); lo >= hi {
					continue
				}
				column := lo*n.KVLen + j
				rows := (hi-lo-1)*n.KVLen + 1
				addRows(dk[(j-from)*n.Dim:(j-from+1)*n.Dim], part, n.ds[column:column+rows], n.KVLen, n.q[lo*n.Dim:hi*n.Dim])
				addRows(dv[(j-from)*n.VDim:(j-from+1)*n.VDim], part, n.p[column:column+rows], n.KVLen, n.do[lo*n.VDim:hi*n.VDim])
			}
		}
	}
	for j := from; j < to; j++ {
		store(n.args.DK, b, g, j, dk[(j-from)*n.Dim:(j-from+1)*n.Dim], n.scale)
		store(n.args.DV, b, g, j, dv[(j-from)*n.VDim:(j-from+1)*n.VDim], 1)
	}
}

func (n *naive) matrixRow(c []float32, t rowTile, i int) []float32 {
	row := n.row(t, i) * n.KVLen
	return c[row : row+n.KVLen]
}

// dots sets c[j] = by·(x·y_j), four rows y_j at a time.
func dots(c, x, y []float32, by float32) {
	dim, j := len(x), 0
	for ; j+4 <= len(c); j += 4 {
		y0, y1, y2, y3 := y[j*dim:][:dim], y[(j+1)*dim:][:dim], y[(j+2)*dim:][:dim], y[(j+3)*dim:][:dim]
		var c0, c1, c2, c3 float32
		for e, v := range x {
			c0 += v * y0[e]
			c1 += v * y1[e]
			c2 += v * y2[e]
			c3 += v * y3[e]
		}
		c[j], c[j+1], c[j+2], c[j+3] = by*c0, by*c1, by*c2, by*c3
	}
	for ; j < len(c); j++ {
		var sum float32
		for e, v := range x {
			sum += v * y[j*dim+e]
		}
		c[j] = by * sum
	}
}

// addRows adds each row of y, times the row's weight, to sum. It processes four rows at a time. The
// weight of row j is weights[j*step]. part is scratch memory. addRows first sums the rows in part,
// which keeps the rounding error of a long sum small.
func addRows(sum, part, weights []float32, step int, y []float32) {
	dim, j := len(sum), 0
	rows := len(y) / dim
	part = part[:dim]
	clear(part)
	for ; j+4 <= rows; j += 4 {
		w0, w1, w2, w3 := weights[j*step], weights[(j+1)*step], weights[(j+2)*step], weights[(j+3)*step]
		y0, y1, y2, y3 := y[j*dim:][:dim], y[(j+1)*dim:][:dim], y[(j+2)*dim:][:dim], y[(j+3)*dim:][:dim]
		for e := range part {
			part[e] += w0*y0[e] + w1*y1[e] + w2*y2[e] + w3*y3[e]
		}
	}
	for ; j < rows; j++ {
		w := weights[j*step]
		for e, v := range y[j*dim:][:dim] {
			part[e] += w * v
		}
	}
	for e, v := range part {
		sum[e] += v
	}
}

// dense returns the tensor's elements as dense float32: the tensor's own memory if possible, else a
// copy.
func dense(t flashkit.Tensor) []float32 {
	s := t.Shape()
	if t.DType() == flashkit.Float32 && t.Strides() == [4]int{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1} {
		return t.Float32s()
	}
	out := make([]float32, 0, s[0]*s[1]*s[2]*s[3])
	for b := range s[0] {
		for h := range s[1] {
			for r := range s[2] {
				for e, at := 0, t.Offset(b, h, r); e < s[3]; e++ {
					out = append(out, input.Value(&t, at+e))
				}
			}
		}
	}
	return out
}

// store writes by·x to a row of the tensor.
func store(t flashkit.Tensor, b, h, r int, x []float32, by float32) {
	at := t.Offset(b, h, r)
	for e, v := range x {
		input.SetValue(&t, at+e, v*by)
	}
}
