//go:build amd64 && !purego

package simd

import "github.com/flashkit-go/flashkit/backends/simd/internal/pool"

// bwd_amxf32 computes like bwd_avx512, but with the products of fwd_amxf32: six bf16 products
// replace a float32 product. Each element of an operand is split into a sum of three bf16. Plane i
// of the operand holds the i-th bf16 of each element. Tiles and panels are visited in the order of
// bwd_amxbf16.
//
//	for each panel:
//		S  = Q Kᵀ; dP = dO Vᵀ                  planes of rows of Q and dO
//		P  = exp(scale * S - LSE); dS = scale P (dP - delta), in float32, then split into planes,
//		                                       while AMX computes S and dP of the next panel
//		dVᵀ += dOᵀ P; dKᵀ += Qᵀ dS             pairs of rows of P and dS
//	dQ += dS K                                 rows of dS, pairs of keys
//
// Each matrix product is summed from 0, and its result is then added to dQ, dK or dV. K and V are
// packed once per block, but Q and dO are packed again for each block. Hence blocks are large. delta
// is the diagonal of dO Oᵀ, summed in the order of dP.

// For head dims up to 128, a tile has at most planeRowsBwd query rows, and a block usually has
// planeKeysBwd keys. For larger head dims, both numbers are halved. A product for dQ sums over
// planeSumKeys keys, whatever the size of a block.
const planeRowsBwd, planeKeysBwd, planeSumKeys = 256, 256, 128

func bwdAMXF32Plan(pl *plan) {
	p := &pl.p
	rows, keys := planeRowsBwd, planeKeysBwd
	if max(p.Dim, p.VDim) > 128 {
		rows, keys = rows/2, keys/2
	}
	pl.planBlocks(max(tileStep, min(rows, upToTiles(p.QLen))), keys, planeSumKeys)
	dim, vdim, widest := upToTiles(p.Dim), upToTiles(p.VDim), max(p.Dim, p.VDim)
	avx512Lanes.setBlocks(pl, 3*planeWords(pairLanes, p.VDim)+pairLanes*(pairLanes+1)+p.VDim,
		2*planeWords(pl.keys, p.Dim)+planeWords(pl.keys, p.VDim)+pl.gradFloats(dim, vdim)+pl.maskFloats()+pl.scoreFloats(pairLanes)+
			2*(planeWords(pl.rows, p.Dim)+planeWords(pl.rows, p.VDim))+pl.rows*pairWords(widest)+
			planeWords(pairLanes, p.Dim)+planeWords(pairLanes, p.VDim)+
			2*pl.rows*(2*pairLanes+1)+2*planes*planeOf(pl.rows/2*pairLanes)+planes*planeOf(pl.rows*tileDSStep(pl)/2)+
			pairLanes*(pairLanes+1)+widest+pairLanes*max(dim, vdim))
}

func bwdAMXF32Times(pl *plan) [3]timedPhase {
	pace := crowded(bwdPlanePace, pl.workers)
	return pace.backward(pl.call, pairLanes, tileStep, avx512Lanes.cut(pl))
}

func bwdAMXF32Prepare(j *job, ws *pool.Arena, item int) {
	p, f := &j.p, j.args
	var y seqTile
	t := y.findRows(&j.plan, item)
	x := avx512Lanes.stats(j, y.b, y.h, t)
	avx512Lanes.clearSums(j, &x, &y, t)
	if p.Score.Ranges != 0 {
		x.setBounds(j, &y)
	}
	do, o := newPlaneRows(ws, p.VDim, pairLanes), newPlaneRows(ws, p.VDim, pairLanes)
	lanes, s := takeWords(ws, planeWords(pairLanes, p.VDim)), ws.Take(pairLanes*pairLanes)
	top, row := ws.Take(pairLanes), ws.Take(p.VDim)
	for r := y.from; r < y.to; r += pairLanes {
		n, at, first := min(pairLanes, y.to-r), r-y.from, y.Q0+r
		do.load(&f.DO, y.QBatch, y.h, first, n, row)
		o.load(&f.O, y.QBatch, y.h, first, n, row)
		o.toLanes(lanes, o.plane())
		planeDots(s, &do, 0, n, lanes, o.plane(), top)
		addOutlierDots(s, &do.tensorRows, &o.tensorRows, row)
		for i := range n {
			x.delta[at+i] = s[i*pairLanes+i]
		}
		j.takeDLSE(x.delta[at:], y.QBatch, y.h, first, n)
		j.takeLSE(x.lse[at:], y.QBatch, y.h, first, n)
	}
	j.sumDSink(&x, &y)
	j.clearGradRows(&y)
}

// planeDots sets s, [n][pairLanes], to the dot products of rows [from, from+n) of a with the rows
// of another tensor. The slice lanes holds the rows of that tensor, one per lane. Its shape is
// [planes][a.step/2][pairLanes], and its elements are pairs of columns. plane is the distance
// between planes, in words. top is scratch.
func planeDots(s []float32, a *planeRows, from, n int, lanes []uint32, plane int, top []float32) {
	planeScoresAMXBF16(&s[0], &a.rows[from*a.step], a.step, 4*a.plane(), &lanes[0], 4*plane, a.step/2, n, &top[0])
}

type planeGrads struct {
	gradPanels
	k, v            tensorRows
	kLanes, vLanes  []uint32  // pairs of columns, one key per lane, [planes][panels][dim/2][lanes]
	kPairs          []uint32  // pairs of keys, [planes][keys/2][dim]
	q, do           planeRows // of the current tile
	h, row0         int       // head and first row of the current tile
	qColumns        []uint32  // pairs of rows, transposed, [planes][dim][rows/2]
	doColumns       []uint32
	pairs           []uint32 // scratch, one plane of [rows/2][dim]
	now, next       scorePanel
	p, ds           []uint32  // P and dS of a panel, [planes][rows/2][lanes]
	dsRows          []uint16  // dS, [planes][rows][tileDSStep]
	top, row, sum   []float32 // [lanes], scratch for row maxima; one row of any tensor; scratch of planeSumsAMXBF16
	outliers        bool      // dS of the tile has outliers: NaN, infinity or huge numbers, which no sum of three bf16 represents
	kPlane, vPlane  int       // words between planes of K and V
	pPlane, dsPlane int       // words between planes of P, and of rows of dS
}

type scorePanel struct {
	k, lo, n int       // first key; first row in the tile; number of rows
	s, dp    []float32 // [rows][lanes]
	masks    []uint32  // [rows], a bit for each key that the row sees
}

func newScorePanel(j *job, ws *pool.Arena) scorePanel {
	n := j.rows * pairLanes
	return scorePanel{s: ws.Take(n), dp: ws.Take(n), masks: takeWords(ws, j.rows)}
}

func bwdAMXF32Block(j *job, ws *pool.Arena, item int) {
	p, f := &j.p, j.args
	dim, vdim, widest := upToTiles(p.Dim), upToTiles(p.VDim), max(p.Dim, p.VDim)
	x := planeGrads{
		gradPanels: newGradPanels(j, ws, item, j.scale),
		kLanes:     takeWords(ws, planeWords(j.keys, p.Dim)), vLanes: takeWords(ws, planeWords(j.keys, p.VDim)),
		kPairs: takeWords(ws, planeWords(j.keys, p.Dim)),
		q:      newPlaneRows(ws, p.Dim, j.rows), do: newPlaneRows(ws, p.VDim, j.rows),
		qColumns: takeWords(ws, planeWords(j.rows, p.Dim)), doColumns: takeWords(ws, planeWords(j.rows, p.VDim)),
		pairs: takeWords(ws, j.rows*pairWords(widest)),
		now:   newScorePanel(j, ws), next: newScorePanel(j, ws),
		top: ws.Take(pairLanes), row: ws.Take(widest), sum: ws.Take(pairLanes * pairLanes),
		kPlane: planeOf(j.keys * dim / 2), vPlane: planeOf(j.keys * vdim / 2),
		pPlane: planeOf(j.rows / 2 * pairLanes), dsPlane: planeOf(j.rows * tileDSStep(&j.plan) / 2),
	}
	x.p, x.ds, x.dsRows = takeWords(ws, planes*x.pPlane), takeWords(ws, planes*x.pPlane), halves(takeWords(ws, planes*x.dsPlane))
	k, v := newPlaneRows(ws, p.Dim, pairLanes), newPlaneRows(ws, p.VDim, pairLanes)
	for r := x.from; r < x.to; r += pairLanes {
		n, at := min(pairLanes, x.to-r), r-x.from
		k.load(&f.K, x.KVBatch, x.g, x.K0+r, n, x.row)
		k.toLanes(x.kLanes[at*dim/2:], x.kPlane)
		k.toPairs(x.kPairs[at*dim/2:], x.kPlane)
		v.load(&f.V, x.KVBatch, x.g, x.K0+r, n, x.row)
		v.toLanes(x.vLanes[at*vdim/2:], x.vPlane)
		x.k.outliers, x.v.outliers = x.k.outliers || k.outliers, x.v.outliers || v.outliers
	}
	x.k = tensorRows{t: &f.K, b: x.KVBatch, h: x.g, at: x.K0 + x.from, n: x.to - x.from, outliers: x.k.outliers}
	x.v = tensorRows{t: &f.V, b: x.KVBatch, h: x.g, at: x.K0 + x.from, n: x.to - x.from, outliers: x.v.outliers}
	avx512Lanes.walk(j, &x.keyRange, &x.gradSum, &x.score, item, func(h, t int, at int64) { x.addTile(j, item, h, t, at) })
	rows := ws.Take(pairLanes * max(dim, vdim))
	x.store(j, &f.DK, x.dk, rows, ones[:])
	x.store(j, &f.DV, x.dv, rows, ones[:])
}

func (x *planeGrads) addTile(j *job, item, h, t int, at int64) {
	f := j.args
	y, from := avx512Lanes.stats(j, x.b, h, t), t*j.rows
	n := min(j.rows, x.N-from)
	if x.mask.hidesTile(j, &x.keyRange, &y) {
		avx512Lanes.skipTile(j, &x.keyRange, &y, item, h, t, at)
		return
	}
	x.outliers, x.now.k, x.now.n = false, x.from, 0
	x.q.load(&f.Q, x.QBatch, h, x.Q0+from, n, x.row)
	x.h, x.row0 = h, from
	x.q.toColumns(x.qColumns, x.pairs)
	x.do.load(&f.DO, x.QBatch, h, x.Q0+from, n, x.row)
	x.do.toColumns(x.doColumns, x.pairs)
	x.score.setTile(j, &x.keyRange, h, from, n)
	x.eachPanel(j, item, from, n, at, func(k int) { x.addPanel(j, &y, k) }, func(lo, hi int) {
		x.addLast(j, &y)
		avx512Lanes.flushKeyRun(j, &y, &x.keyRange, h, t)
		dq, step := avx512Lanes.gathered(j, &y, &x.seqTile, h, t, j.chain(&x.keyRange))
		x.addQueries(j, &y, dq, step, lo, hi)
	})
}

// addPanel computes S and dP of the tile for the panel that begins at key k. Interleaved with these
// products, it computes P and dS of the previous panel. Then it adds Pᵀ dO and dSᵀ Q of the previous
// panel to dV and dK. It processes the rows that see a key of the panel, rounded out to whole steps
// of tileStep rows.
func (x *planeGrads) addPanel(j *job, y *tileStats, k int) {
	at, step := k-x.from, tileDSStep(&j.plan)
	lo, n := x.panelRows(x.row0, x.q.n, k)
	if !x.setMasks(j, x.next.masks, x.h, x.row0+lo, n, k) {
		n = 0
	}
	for r := range x.q.n {
		for i := 0; i < planes && (r < lo || r >= lo+n); i++ {
			clear(x.dsRows[2*i*x.dsPlane+r*step+at:][:pairLanes])
		}
	}
	if n <= 0 {
		return
	}
	x.next.k, x.next.lo, x.next.n = k, lo, n
	if x.score.on {
		x.addFeatured(j, y)
		return
	}
	pairs := (x.now.n + 1) / 2
	fits := x.gradients(j, y, 0, pairs/2, x.next.s, &x.q, n, x.kLanes[at*x.q.step/2:], x.kPlane)
	fits = x.gradients(j, y, pairs/2, pairs, x.next.dp, &x.do, n, x.vLanes[at*x.do.step/2:], x.vPlane) && fits
	x.next.addOutliers(x)
	x.addSums(j, y, fits)
	x.now, x.next = x.next, x.now
}

// addFeatured is the rest of addPanel in a call with score features or dropout. It swaps x.now and
// x.next, so that x.now is the new panel. It computes S, dP, P and dS of this panel in float32. It
// splits each element of P and dS into a sum of three bf16, and adds Pᵀ dO and dSᵀ Q to dV and dK.
func (x *planeGrads) addFeatured(j *job, y *tileStats) {
	x.now, x.next = x.next, x.now
	now, step := &x.now, tileDSStep(&j.plan)
	at, n := now.k-x.from, now.n
	x.dots(now)
	x.score.gradients(j, &x.keyRange, now.k, now.lo, n, now.s, now.dp, now.dp, pairLanes, now.masks, y.lse[now.lo:], y.delta[now.lo:])
	if n%2 == 1 {
		clear(now.s[n*pairLanes:][:pairLanes])
		clear(now.dp[n*pairLanes:][:pairLanes])
	}
	planePairsAMXBF16(&x.p[0], 4*x.pPlane, &now.s[0], (n+1)/2)
	planePairsAMXBF16(&x.ds[0], 4*x.pPlane, &now.dp[0], (n+1)/2)
	fits := splitRowsAMXBF16(&x.dsRows[now.lo*step+at], step, 4*x.dsPlane, &now.dp[0], pairLanes, pairLanes, n)
	x.addSums(j, y, fits)
	now.n = 0
}

func (x *planeGrads) dots(s *scorePanel) {
	at := s.k - x.from
	planeDots(s.s, &x.q, s.lo, s.n, x.kLanes[at*x.q.step/2:], x.kPlane, x.top)
	x.score.fetchSome()
	planeDots(s.dp, &x.do, s.lo, s.n, x.vLanes[at*x.do.step/2:], x.vPlane, x.top)
	x.score.fetchSome()
	s.addOutliers(x)
}

func (x *planeGrads) addLast(j *job, y *tileStats) {
	if x.now.n == 0 {
		return
	}
	fits := x.gradients(j, y, 0, (x.now.n+1)/2, x.next.s, &x.q, 0, x.kLanes, 0)
	x.addSums(j, y, fits)
}

// gradients computes P and dS of panel x.now, for the pairs [from, to) of rows. Interleaved with
// this work, it computes dot products of n rows of a with the rows in the slice lanes. It stores
// these dot products, which belong to panel x.next, in the slice next. It returns false if dS has
// an outlier, which no sum of three bf16 represents.
func (x *planeGrads) gradients(j *job, y *tileStats, from, to int, next []float32, a *planeRows, n int, lanes []uint32, plane int) bool {
	now, step, at := &x.now, tileDSStep(&j.plan), 2*from*pairLanes
	row := now.lo + 2*from
	return planeGradientsAMXBF16(&x.p[at/2], &x.ds[at/2], 4*x.pPlane, &x.dsRows[row*step+now.k-x.from], step, 4*x.dsPlane, &now.s[at], &now.dp[at], &now.masks[2*from], to-from, &y.lse[row], &y.delta[row], float32(j.scale),
		&next[0], &a.rows[x.next.lo*a.step], a.step, 4*a.plane(), &lanes[0], 4*plane, a.step/2, n)
}

// addSums adds Pᵀ dO and dSᵀ Q of panel x.now to dV and dK, unless the panel is empty. If fits is
// false, dS has outliers: addSums adds the products of the outliers separately.
func (x *planeGrads) addSums(j *job, y *tileStats, fits bool) {
	p, now, at, step := &j.p, &x.now, x.now.k-x.from, tileDSStep(&j.plan)
	lo, n := now.lo, now.n
	if n == 0 {
		return
	}
	pairs, filled := (n+1)/2, upToTiles(n)/2
	for i := 0; i < planes && pairs < filled; i++ {
		clear(x.p[i*x.pPlane+pairs*pairLanes : i*x.pPlane+filled*pairLanes])
		clear(x.ds[i*x.pPlane+pairs*pairLanes : i*x.pPlane+filled*pairLanes])
	}
	q, do, dk, dv := x.q.part(lo, n), x.do.part(lo, n), x.dk[at*x.q.step:], x.dv[at*x.do.step:]
	if !fits {
		x.outliers = true
		if !x.score.on {
			now.gradients(j, y)
		}
		now.eachOutlierGradient(func(r, i int, ds float32) {
			for plane := range planes {
				halves(x.ds)[2*(plane*x.pPlane+r/2*pairLanes+i)+r%2] = 0
				x.dsRows[2*plane*x.dsPlane+(lo+r)*step+at+i] = 0
			}
			for c := range p.Dim {
				dk[c*pairLanes+i] += ds * q.element(r, c)
			}
		})
	}
	planeSumsAMXBF16(&dv[0], pairLanes, &halves(x.doColumns)[lo], x.do.size, 4*x.do.plane(), &x.p[0], pairLanes, 4*x.pPlane, p.VDim, pairLanes, filled, &x.sum[0])
	addOutlierSums(dv, &do, x.p, x.pPlane, now.masks, x.row)
	planeSumsAMXBF16(&dk[0], pairLanes, &halves(x.qColumns)[lo], x.q.size, 4*x.q.plane(), &x.ds[0], pairLanes, 4*x.pPlane, p.Dim, pairLanes, filled, &x.sum[0])
	addOutlierSums(dk, &q, x.ds, x.pPlane, now.masks, x.row)
}

// addOutliers adds to S and dP the products of two elements of which at least one is an outlier.
// In the packed operands, the outliers are replaced by 0.
func (s *scorePanel) addOutliers(x *planeGrads) {
	at, keys := s.k-x.from, min(pairLanes, x.to-s.k)
	q, do, kPart, vPart := x.q.part(s.lo, s.n), x.do.part(s.lo, s.n), x.k.part(at, keys), x.v.part(at, keys)
	addOutlierDots(s.s, &q, &kPart, x.row)
	addOutlierDots(s.dp, &do, &vPart, x.row)
}

// gradients replaces S by P, and dP by dS.
func (s *scorePanel) gradients(j *job, y *tileStats) {
	gradientsAVX512(&s.s[0], &s.dp[0], &s.dp[0], pairLanes, &s.masks[0], s.n, &y.lse[s.lo], &y.delta[s.lo], float32(j.scale))
}

// eachOutlierGradient calls f for each outlier of dS, with its row r and its lane i. s.dp holds dS.
func (s *scorePanel) eachOutlierGradient(f func(r, i int, ds float32)) {
	for at, ds := range s.dp[:s.n*pairLanes] {
		if isOutlier(ds) {
			f(at/pairLanes, at%pairLanes, ds)
		}
	}
}

func (x *planeGrads) addQueries(j *job, y *tileStats, dq []float32, dqStep, lo, hi int) {
	p, step, dim := &j.p, tileDSStep(&j.plan), x.q.step
	for from, to := lo, 0; from < hi; from = to {
		to = min((from+planeSumKeys)&^(planeSumKeys-1), hi)
		if x.hidesPart(j, x.h, from, planeSumKeys) {
			continue
		}
		at, pairs := from-x.from, upToTiles(to-from)/2
		for c := 0; c < p.Dim; c += pairLanes {
			planeSumsAMXBF16(&dq[c], dqStep, &x.dsRows[at], step, 4*x.dsPlane, &x.kPairs[at/2*dim+c], dim, 4*x.kPlane, x.q.n, min(pairLanes, p.Dim-c), pairs, &x.sum[0])
		}
		x.addOutlierQueries(j, y, dq, dqStep, from, to)
	}
}

// addOutlierQueries adds to dQ of the tile the products of dS and K in which a factor is an outlier,
// over the keys [lo, hi). The range has at most planeSumKeys keys, so the order of sums does not
// depend on the size of blocks.
func (x *planeGrads) addOutlierQueries(j *job, y *tileStats, dq []float32, dqStep, lo, hi int) {
	p, step, at := &j.p, tileDSStep(&j.plan), lo-x.from
	for k := lo; k < hi && x.outliers; k += pairLanes {
		rows, n := x.panelRows(x.row0, x.q.n, k)
		if !x.setMasks(j, x.now.masks, x.h, x.row0+rows, n, k) {
			continue
		}
		x.now.k, x.now.lo, x.now.n = k, rows, n
		if x.dots(&x.now); x.score.on {
			x.score.recompute(j, &x.keyRange, k, rows, n, x.now.s, x.now.dp, x.now.masks, y.lse[rows:], y.delta[rows:])
		} else {
			x.now.gradients(j, y)
		}
		x.now.eachOutlierGradient(func(r, i int, ds float32) {
			for c := range p.Dim {
				dq[(rows+r)*dqStep+c] += ds * x.k.element(k-x.from+i, c)
			}
		})
	}
	seen := x.k.part(at, hi-lo)
	seen.eachOutlier(x.row, func(key, c int, v float32) {
		for r := range x.q.n {
			if j.sees(&x.seqTile, x.h, x.row0+r, lo+key) {
				dq[r*dqStep+c] += planeSum(x.dsRows, 2*x.dsPlane, r*step+at+key) * v
			}
		}
	})
}
