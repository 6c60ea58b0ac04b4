package matmul

import (
	"sync/atomic"

	"github.com/flashkit-go/flashkit/internal/workers"
)

// A job is one call in progress. Its work is split into items, and workers take items until none is
// left. The result of an item does not depend on its worker.
type job struct {
	args       Args
	dst, x, dy []float32       // operands of elementwise calls, which have no C
	packed     *Packed         // destination of packing; the source is A
	done       <-chan struct{} // the Done channel of the call's context

	isa     *isa
	cut     panels
	rows    int   // rows of C in an item
	group   int   // panels in an item
	kBlock  int   // number of products in a partial sum
	copies  bool  // A is copied part by part, because it is strided or rounded
	copied  int   // offset of the copy in a worker's memory, after the sums
	rounded int   // offset of the pairs of A's part, with AMX of all its columns
	widened int   // offset of a part of B, widened to float32; with Int8, of a tile's sums
	scales  int   // with Int8, offset of the scales of A's rows
	held    []int // with Int8 and AMX, the first row in each worker's memory, or -1
	plain   bool  // C is the product plus at most a bias and the old C
	adds    int   // 2 if multiply adds the old C, else 0
	vector  bool  // C has one row, computed by isa.vector
	items   int64
	_       [64]byte // next has a cache line of its own: workers read the other fields
	next    atomic.Int64
	_       [64]byte
	workers int
	work    [][]float32 // memory of each worker
}

const (
	panelGroup = 4      // panels of an item if rows of A do not fit the L2 cache with a panel
	copyGroup  = 12     // most panels of an item that copies A: their sums fit the L2 cache too
	mostK      = 384    // most products of a partial sum: its part of a panel fits the L2 cache
	packRows   = 64     // rows of B in an item of packing
	smallTime  = 10_000 // nanoseconds of work that are worth one more goroutine
)

// plan splits a product into items. The length of a partial sum affects the bits of C, so this
// length depends only on K and the precision.
func (j *job) plan() {
	a := &j.args
	m, k := a.C.Rows, a.B.k
	u := a.B.isa
	j.isa, j.cut = u, a.B.cut()
	unit := 16
	if a.B.made == BF16 {
		unit = 32
	}
	longest, most := mostK, u.rows
	if u.tiles {
		longest, most = heldK, u.heldRows(k)
	}
	j.kBlock = max(unit, equalParts(k, longest, unit)) // not 0 even for K = 0, because block advances by it
	time := 2 * float64(m) * float64(k) * float64(a.B.n) / u.flops
	j.workers = min(workers.Most(a.Workers), 1+int(min(time/smallTime, 1<<20)))
	tile := u.tile
	j.rows, j.group, j.copies = equalParts(m, most, tile), 1, a.A.ColStride != 1 || a.B.made >= BF16
	j.vector = m == 1 && u.vector != nil && a.B.made == Float32 && !j.copies
	switch {
	case j.vector:
		j.group = vectorPanels
	case a.B.made == Int8, j.isa.tiles:
		j.group = j.cut.count()
	case j.copies:
		j.group = equalParts(j.cut.count(), copyGroup, 1)
	case j.rows*k > u.block:
		j.group = panelGroup
	}
	for j.tooFew(tile) {
		switch {
		case j.isa.tiles && j.group > heldGroup:
			j.group = equalParts(j.cut.count(), j.group/2, 1)
		case j.group == 1 || j.copies && j.rows >= 8*tile:
			j.rows = equalParts(m, j.rows/2, tile)
		case j.copies:
			j.group = equalParts(j.cut.count(), j.group/2, 1)
		default:
			j.group = 1
		}
	}
	j.follow()
	j.items = int64(j.count())
	j.hold(j.layout())
}

// follow decides whether multiply or finish completes C. multiply can add a bias and the old C, and
// finish does everything else.
func (j *job) follow() {
	a := &j.args
	itself := a.Residual.Data != nil && &a.Residual.Data[0] == &a.C.Data[0] && a.Residual.RowStride == a.C.RowStride
	j.plain, j.adds = a.Activation == None && a.Before.Data == nil, 0
	switch {
	case itself && !a.Accumulate && j.isa.adds, a.Residual.Data == nil && a.Accumulate && j.isa.adds:
		j.adds = 2
	case a.Residual.Data != nil || a.Accumulate:
		j.plain = false
	}
}

// layout sets the offsets in a worker's memory, each at a cache line. It returns the size of this
// memory in floats.
func (j *job) layout() int {
	if j.args.B.made == Int8 {
		return j.layoutInt8()
	}
	part, panels := j.rows*j.kBlock, j.group
	if j.isa.tiles {
		panels = 1
	}
	j.copied = j.sumsOf(panels)
	j.rounded = j.copied
	if j.args.A.ColStride != 1 || j.copies && j.isa.roundRows == nil {
		j.rounded += part
	}
	j.widened = j.rounded
	if j.isa.tiles {
		return j.rounded + j.rows*j.isa.pairsOf(j.args.B.k)
	}
	if j.args.B.made == BF16 && j.isa.roundRows != nil {
		j.widened += part / 2
	}
	if j.args.B.made != Float32 && j.isa.goes() {
		return j.widened + j.kBlock*min(j.cut.size, j.cut.vectors)*j.isa.lanes
	}
	return j.widened
}

// tooFew reports whether there are too few items to keep the workers busy. A helper that waits long
// for the last item falls asleep and comes late to the next call. Smaller items have a cost: items
// of fewer rows read B more often, and items of fewer panels copy A more often.
func (j *job) tooFew(tile int) bool {
	n := j.count()
	if j.workers == 1 || j.group == 1 && j.rows <= 2*tile || j.vector && n >= j.workers {
		return false
	}
	return n < 4*j.workers || n < 24*j.workers && j.group == 1 && j.rows >= 64
}

// groups returns the number of groups of panels.
func (j *job) groups() int { return (j.cut.count() + j.group - 1) / j.group }

func (j *job) count() int { return (j.args.C.Rows + j.rows - 1) / j.rows * j.groups() }

// sumsOf returns the number of sums of an item with the given number of panels.
func (j *job) sumsOf(panels int) int {
	return panels * j.rows * min(j.cut.size, j.cut.vectors) * j.isa.lanes
}

// hold reserves the workspace of all workers, so that a later call allocates nothing.
func (j *job) hold(floats int) {
	j.workers = int(min(int64(j.workers), j.items))
	for len(j.work) < j.workers {
		j.work, j.held = append(j.work, nil), append(j.held, -1)
	}
	for i := range j.workers {
		j.work[i] = aligned(j.work[i], floats)
		j.held[i] = -1
	}
}

// planPacking splits the packing of B into items. args.A holds B.
func (j *job) planPacking(most int) {
	j.items = j.packed.items(&j.args.A)
	time := 4 * float64(j.packed.k) * float64(j.packed.n) / chosen.flops
	j.workers = int(min(int64(workers.Most(most)), 1+int64(time/smallTime), j.items))
}

// Work takes items until none is left.
func (j *job) Work(slot int) {
	for !j.canceled() {
		item := j.next.Add(1) - 1
		if item >= j.items {
			return
		}
		switch {
		case j.x != nil:
			j.elements(int(item) * elements)
		case j.packed != nil:
			j.packed.pack(&j.args.A, int(item))
		default:
			n := j.groups()
			j.block(slot, int(item)/n*j.rows, int(item)%n*j.group)
		}
	}
}

// block computes an item: rows of C in a group of panels. Long rows of A are split into parts. Each
// part is multiplied by all panels of the group while the part is in the cache.
func (j *job) block(slot, row, first int) {
	if j.args.B.made == Int8 {
		j.blockInt8(slot, row, first)
		return
	}
	if j.isa.tiles {
		j.blockHeld(slot, row, first)
		return
	}
	work := j.work[slot]
	a, k, last := &j.args.A, j.args.B.k, min(first+j.group, j.cut.count())
	rows, size := min(j.rows, j.args.C.Rows-row), j.sumsOf(1)
	for from := 0; from == 0 || from < k; from += j.kBlock {
		p := part{row: row, rows: rows, from: from, n: min(j.kBlock, k-from)}
		if k > 0 {
			p.a = Matrix{Data: a.Data[row*a.RowStride+from*a.ColStride:], Rows: rows, Cols: p.n, RowStride: a.RowStride, ColStride: a.ColStride}
		}
		if j.copies && k > 0 {
			j.copyPart(&p, work)
		}
		for i := first; i < last; i += p.panels {
			p.panels = 1
			if j.vector && i+vectorPanels <= min(last, j.cut.wide) {
				p.panels = vectorPanels
			}
			p.col, p.width = j.cut.at(i)
			p.width *= p.panels
			p.sums = work[(i-first)*size:][:rows*p.width]
			j.part(&p, work[j.widened:], j.follows(i, first, last, from, p.n))
		}
	}
}

// follows returns the index in B of the part to prefetch while the given panel's part is multiplied:
// the part that comes next. After the last part of an item, this is the first part of the worker's
// next item, if workers take items in turn. If no item is left, and all rows of C are in one item,
// the index is beyond the end of B. There the next Packed matrix of B's Block follows, and the next
// product usually reads that matrix.
func (j *job) follows(panel, first, last, from, n int) int {
	k, ahead := j.args.B.k, first+j.group*j.workers
	switch {
	case j.isa.tiles && from+n < k:
		from += n
	case panel+1 < last && j.isa.tiles:
		panel, from = panel+1, 0
	case panel+1 < last:
		panel++
	case from+n < k:
		panel, from = first, from+n
	case ahead < j.cut.count():
		panel, from = ahead, 0
	case j.rows < j.args.C.Rows: // the next item has other rows and the first panels
		panel, from = ahead%j.cut.count(), 0
	default:
		b := j.args.B
		return b.at(j.cut.vectors*j.isa.lanes, 0, 0) + (ahead-j.cut.count())*b.at(0, n, j.cut.size*j.isa.lanes)
	}
	col, width := j.cut.at(panel)
	return j.args.B.at(col, from, width)
}

// A part is the product of columns [from, from+n) of some rows of A and rows [from, from+n) of a
// panel of B, or of neighboring panels.
type part struct {
	row, rows, col, width int
	panels, from, n       int
	a                     Matrix    // the part of A
	pairs                 *uint32   // or the pairs of this part; rows are kBlock/2 pairs apart
	sums                  []float32 // [rows][width]
}

// copyPart replaces the A of a part by a copy that is contiguous, rounded, or both.
func (j *job) copyPart(p *part, work []float32) {
	if j.args.A.ColStride != 1 || j.isa.roundRows == nil {
		p.a.copyTo(work[j.copied:])
	}
	if j.args.B.made == BF16 {
		p.pairs = j.round(&p.a, work)
	}
}

// part computes a part, and finishes C after the last part of K. It prefetches B from index next
// on.
func (j *job) part(p *part, work []float32, next int) {
	a := &j.args
	last := p.from+p.n == a.B.k
	switch {
	case a.B.k == 0:
		clear(p.sums)
	case j.isa.goes():
		j.multiplyPortable(p, work)
	default:
		var c, bias *float32
		if last && j.plain && !j.isa.tiles && p.col+p.width <= a.B.n {
			c = a.C.at(p.row, p.col)
			if a.Bias != nil {
				bias = &a.Bias[p.col]
			}
		}
		j.multiply(p, c, bias, next)
		if c != nil {
			return
		}
	}
	if last {
		j.finish(p)
	}
}

// multiply calls the routine for the width of the part's panel. The result goes to c, or to the
// part's sums if c is nil.
func (j *job) multiply(p *part, c, bias *float32, next int) {
	b := j.args.B
	if p.panels > 1 {
		width := p.width / p.panels
		j.isa.vector(&p.sums[0], &p.a.Data[0], &b.memory[b.at(p.col, p.from, width)], b.k*width, p.n, min(p.from, 1)|j.adds, c, bias)
		return
	}
	i := p.width/j.isa.lanes - 1
	at, add, cStep, ahead, fetch := b.at(p.col, p.from, p.width), min(p.from, 1)|j.adds, j.args.C.RowStride, b.ahead(next), j.fetchTiles(p.rows, p.width)
	switch {
	case b.made == Float32:
		j.isa.multiply[i](&p.sums[0], &p.a.Data[0], &b.memory[at], p.a.RowStride, p.n, p.rows, add, c, cStep, bias, ahead, fetch)
	case p.pairs != nil:
		j.isa.pairs[i](&p.sums[0], p.pairs, &b.pairs[at], j.kBlock/2, j.isa.pairsOf(p.n), p.rows, add, c, cStep, bias, ahead, fetch)
	default:
		j.isa.widen[i](&p.sums[0], &p.a.Data[0], &b.pairs[at], p.a.RowStride, p.n, p.rows, add, c, cStep, bias, ahead, fetch)
	}
}

// multiplyPortable does the work of multiply in portable Go. work has room for a part of B in
// float32.
func (j *job) multiplyPortable(p *part, work []float32) {
	if p.from == 0 {
		clear(p.sums)
	}
	b, n := j.args.B, p.n*p.width
	if b.made == Float32 {
		multiplyPortable(p.sums, &p.a, b.memory[b.at(p.col, p.from, p.width):][:n], p.width)
		return
	}
	b.widen(work, p.col, p.from, p.n, p.width)
	multiplyPortable(p.sums, &p.a, work[:n], p.width)
}

// fetchTiles returns the number of tiles over which the prefetches of the next part of B are
// spread. This is the largest number in j.isa.fetch that is at most the number of whole tiles in
// the given rows, or 1. A burst of prefetches would delay reads of A and B, and then leave memory
// idle. With AMX, see fetchLines.
func (j *job) fetchTiles(rows, width int) int {
	if j.isa.tiles {
		return j.fetchLines(rows, width)
	}
	most := 1
	for _, n := range j.isa.fetch {
		if n*j.isa.tile <= rows {
			most = n
		}
	}
	return most
}

// finish computes a part of C from its sums. It applies bias, activation and residual.
func (j *job) finish(p *part) {
	a := &j.args
	row, col, cols := p.row, p.col, min(p.width, a.B.n-p.col)
	if j.isa.finish[a.Activation] == nil {
		a.finishPortable(p.sums, row, col, p.rows, cols, p.width)
		return
	}
	var bias, before, residual *float32
	add := 0
	if a.Bias != nil {
		bias = &a.Bias[col]
	}
	if a.Before.Data != nil {
		before = a.Before.at(row, col)
	}
	if a.Residual.Data != nil {
		residual = a.Residual.at(row, col)
	}
	if a.Accumulate {
		add = 1
	}
	j.isa.finish[a.Activation](a.C.at(row, col), a.C.RowStride, &p.sums[0], p.width, bias, before, a.Before.RowStride, residual, a.Residual.RowStride, p.rows, cols, add)
}

func (j *job) canceled() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}
