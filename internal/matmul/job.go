package matmul

import (
	"sync/atomic"

	"github.com/flashkit-go/flashkit/internal/workers"
)

// A job is one call in progress. Its work is cut into items, and workers take the next one
// until none is left. Which worker takes an item does not touch the item's result.
type job struct {
	args       Args
	dst, x, dy []float32       // of elements, which have no C
	done       <-chan struct{} // of the call's context

	cut     panels
	rows    int // of an item
	kBlock  int // products of a partial sum
	items   int64
	next    atomic.Int64
	workers int
	sums    [][]float32 // of each worker
}

const (
	mostRows  = 128     // of an item
	blockA    = 1 << 18 // floats: rows of A of an item stay in the second-level cache
	mostK     = 384     // of a partial sum: its part of a panel stays in the second-level cache
	elements  = 1 << 13 // of an item
	smallTime = 10_000  // nanoseconds of work that are worth a helper
)

// equalParts returns the length of equal parts of n, of which none is longer than most.
func equalParts(n, most, unit int) int {
	parts := max(1, (n+most-1)/most)
	length := (n + parts - 1) / parts
	return (length + unit - 1) / unit * unit
}

// plan cuts a product. A partial sum's length depends on K alone, as bits do on it.
func (j *job) plan() {
	a := &j.args
	m, k := a.C.Rows, a.B.k
	j.cut = panelsOf(a.B.n)
	j.kBlock = equalParts(k, mostK, 4)
	time := 2 * float64(m) * float64(k) * float64(a.B.n) / chosen.flops
	j.workers = min(workers.Most(a.Workers), 1+int(min(time/smallTime, 1<<20)))
	tile := chosen.tile
	j.rows = equalParts(m, max(2*tile, min(mostRows, blockA/max(k, 1)/tile*tile)), tile)
	for j.rows > 2*tile && j.count() < 4*j.workers && j.workers > 1 {
		j.rows = equalParts(m, j.rows/2, tile)
	}
	j.items = int64(j.count())
	j.hold(j.rows * min(3, j.cut.vectors) * chosen.lanes)
}

func (j *job) count() int { return (j.args.C.Rows + j.rows - 1) / j.rows * j.cut.count() }

// hold reserves the workspace of all workers, so that a later call allocates nothing.
func (j *job) hold(floats int) {
	j.workers = int(min(int64(j.workers), j.items))
	for len(j.sums) < j.workers {
		j.sums = append(j.sums, nil)
	}
	for i := range j.workers {
		j.sums[i] = aligned(j.sums[i], floats)
	}
}

// planElements cuts what has no product.
func (j *job) planElements() {
	j.items = int64((len(j.x) + elements - 1) / elements)
	time := 20 * float64(len(j.x)) / chosen.flops
	j.workers = int(min(int64(workers.Most(0)), 1+int64(time/smallTime), j.items))
}

// Work takes items until none is left.
func (j *job) Work(slot int) {
	for !j.canceled() {
		item := j.next.Add(1) - 1
		if item >= j.items {
			return
		}
		if j.x != nil {
			j.elements(int(item) * elements)
			continue
		}
		n := j.cut.count()
		j.block(j.sums[slot], int(item)/n*j.rows, int(item)%n)
	}
}

// block computes rows of C within panel i.
func (j *job) block(sums []float32, row, i int) {
	a := &j.args
	rows := min(j.rows, a.C.Rows-row)
	col, width := j.cut.at(i)
	if chosen.multiply[0] == nil {
		panel := a.B.memory[a.B.k*col:][:a.B.k*width]
		clear(sums[:rows*width])
		for k := 0; k < a.B.k; k += j.kBlock {
			n := min(j.kBlock, a.B.k-k)
			multiplyPortable(sums, &a.A, row, k, panel[k*width:][:n*width], n, rows, width)
		}
		a.finishPortable(sums, row, col, rows, min(width, a.B.n-col), width)
		return
	}
	if a.B.k == 0 {
		clear(sums[:rows*width])
	} else if j.multiply(sums, row, rows, col, width) {
		return
	}
	a.finish(sums, row, col, rows, min(width, a.B.n-col), width)
}

// multiply sets sums to rows of A B within a panel, or, if nothing but a bias is to follow and
// the panel is whole, writes C and returns true.
func (j *job) multiply(sums []float32, row, rows, col, width int) bool {
	a := &j.args
	plain := col+width <= a.B.n && a.Activation == None && a.Before.Data == nil && a.Residual.Data == nil && !a.Accumulate
	multiply, stream := chosen.multiply[width/chosen.lanes-1], 0
	if rows < 3*chosen.tile {
		stream = 1
	}
	var c, bias *float32
	for k := 0; k < a.B.k; k += j.kBlock {
		n := min(j.kBlock, a.B.k-k)
		if plain && k+n == a.B.k {
			c = a.C.at(row, col)
			if a.Bias != nil {
				bias = &a.Bias[col]
			}
		}
		at := a.B.k*col + k*width
		next := min(at+n*width, len(a.B.memory)-1)
		multiply(&sums[0], a.A.at(row, k), a.A.RowStride, a.A.ColStride, &a.B.memory[at], n, rows, min(k, 1), c, a.C.RowStride, bias, &a.B.memory[next], stream)
	}
	return plain
}

// at returns the address of an element.
func (m *Matrix) at(row, col int) *float32 { return &m.Data[row*m.RowStride+col*m.ColStride] }

// finish writes rows of C.
func (a *Args) finish(sums []float32, row, col, rows, cols, width int) {
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
	chosen.finish[a.Activation](a.C.at(row, col), a.C.RowStride, &sums[0], width, bias, before, a.Before.RowStride, residual, a.Residual.RowStride, rows, cols, add)
}

// elements applies an activation, or its derivative, to the elements from the given one on.
func (j *job) elements(from int) {
	n := min(elements, len(j.x)-from)
	dst, x, act := j.dst[from:][:n], j.x[from:][:n], j.args.Activation
	switch {
	case j.dy == nil && chosen.finish[act] != nil:
		chosen.finish[act](&dst[0], 0, &x[0], 0, nil, nil, 0, nil, 0, 1, n, 0)
	case j.dy == nil:
		for i, v := range x {
			dst[i] = act.of(v)
		}
	case chosen.slope[act] != nil:
		chosen.slope[act](&dst[0], &x[0], &j.dy[from], n)
	default:
		act.slopePortable(dst, x, j.dy[from:][:n])
	}
}

func (j *job) canceled() bool {
	select {
	case <-j.done:
		return true
	default:
		return false
	}
}
