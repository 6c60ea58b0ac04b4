package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
)

// gradPairs computes P and dS of a tile of query rows and a tile of keys. P is multiplied by Z, the
// dropout factor of each pair.
type gradPairs struct {
	rows gradTile
	keys kvTile
	s    scorer
	prob [tileK]float32 // Z * P of one row
	ds   [tileK]float32 // gradients of one row's scores, after the softcap
	seen [tileK]int     // scratch of the scorer: the keys that the row sees
}

func (x *gradPairs) begin(j *job, ws *pool.Arena) {
	x.rows, x.keys = newGradTile(j, ws), newKVTile(j, ws)
	x.s.begin(j)
}

func (x *gradPairs) setRows(j *job, t *flashkit.Seq, b, h, from, to int) {
	x.rows.load(j, t.QBatch, h, t.Q0+from, to-from)
	x.s.setHead(t, b, h)
}

// pairs returns the keys of [lo, hi) that query row i sees, as indices counted from key k0. prob is
// Z * P and ds is dS of these keys. Query row i is row r of the loaded tile. A row whose LSE is
// -Inf has no weights, so pairs returns no keys for it.
func (x *gradPairs) pairs(i, r, k0, lo, hi int) (keys []int, prob, ds []float32) {
	t := &x.rows
	lse, delta := float64(t.lse[r]), t.delta[r]
	if lo >= hi || math.IsInf(lse, -1) {
		return nil, nil, nil
	}
	x.s.setRow(i)
	keys = x.s.seen(&x.seen, k0, lo, hi)
	prob, ds = x.prob[:len(keys)], x.ds[:len(keys)]
	scalar.Dots(prob, t.q[r*t.qStep:][:t.dim], x.keys.k, x.keys.kStep, keys)
	dotsInHalves(ds, t.do[r*t.doStep:][:t.vdim], x.keys.v, x.keys.vStep, keys)
	s, z := x.s.scores(prob, k0, keys), x.s.dropout(k0, keys)
	for c := range s {
		w := scalar.Exp(s[c] - lse)
		prob[c], ds[c] = w*z[c], w*(z[c]*ds[c]-delta)
	}
	return keys, prob, ds
}

// gradTile is Q, dO, LSE and delta of a tile of query rows.
type gradTile struct {
	dim, vdim int
	q, do     []float32
	qStep     int
	doStep    int
	lse       []float32
	delta     []float32 // dO·O - dLSE. The sums dO·O and dO·V have the same order: they must be equal in a row whose only key has weight 1

	qBuf, doBuf, oBuf []float32
}

func newGradTile(j *job, ws *pool.Arena) gradTile {
	p, rows := &j.p, j.portable.rows
	return gradTile{
		dim: p.Dim, vdim: p.VDim, lse: ws.Take(rows), delta: ws.Take(rows),
		qBuf: ws.Take(rows * p.Dim), doBuf: ws.Take(rows * p.VDim), oBuf: ws.Take(min(rows, 1) * p.VDim), // without rows, no tensor bounds VDim
	}
}

func (t *gradTile) load(j *job, b, h, r, n int) {
	f := j.args
	t.q, t.qStep = view(&f.Q, b, h, r, n, t.qBuf)
	t.do, t.doStep = view(&f.DO, b, h, r, n, t.doBuf)
	for i := range n {
		t.lse[i] = f.LSE.Float32s()[f.LSE.Offset(b, h, r+i)]
		load(t.oBuf, &f.O, f.O.Offset(b, h, r+i))
		t.delta[i] = dotInHalves(t.do[i*t.doStep:][:t.vdim], t.oBuf)
		if !f.DLSE.IsZero() {
			t.delta[i] -= f.DLSE.Float32s()[f.DLSE.Offset(b, h, r+i)]
		}
	}
}

// pairMatrix holds P and dS of a tile of query rows and a tile of keys. It is set by rows, and read
// by columns for sums over rows.
type pairMatrix struct {
	prob, ds []float32     // [rows][tileK]
	seen     [tileQ]uint64 // for each row, a bit for each key that it sees

	rows        [tileQ]int // results of the method column: rows, and their P and dS
	colP, colDS [tileQ]float32
}

func (m *pairMatrix) setRow(i int, keys []int, prob, ds []float32) {
	p, d, seen := m.prob[i*tileK:][:tileK], m.ds[i*tileK:][:tileK], uint64(0)
	for c, key := range keys {
		p[key], d[key] = prob[c], ds[c]
		seen |= 1 << key
	}
	m.seen[i] = seen
}

// column returns the rows among the first n that see key c of the tile. It also returns P and dS of
// each of these rows for this key.
func (m *pairMatrix) column(c, n int) (rows []int, prob, ds []float32) {
	k := 0
	for i, seen := range m.seen[:n] {
		if seen>>c&1 != 0 {
			m.rows[k], m.colP[k], m.colDS[k] = i, m.prob[i*tileK+c], m.ds[i*tileK+c]
			k++
		}
	}
	return m.rows[:k], m.colP[:k], m.colDS[:k]
}

// dotsInHalves is scalar.Dots, but it sums the products of the first half and of the second half of
// x separately, and then adds both sums. This gives dP more exact digits. These digits matter
// because delta, which has a similar size, is subtracted from dP.
func dotsInHalves(dst, x, rows []float32, step int, at []int) {
	if len(at) == 0 {
		return // rows may be empty, too
	}
	var second [tileK]float32
	half := len(x) / 2 &^ 3
	scalar.Dots(dst, x[:half], rows, step, at)
	scalar.Dots(second[:], x[half:], rows[half:], step, at)
	for j := range at {
		dst[j] += second[j]
	}
}

func dotInHalves(x, y []float32) float32 {
	half := len(x) / 2 &^ 3
	return scalar.Dot(x[:half], y[:half]) + scalar.Dot(x[half:], y[half:])
}
