package nn

import (
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/elements"
	"github.com/flashkit-go/flashkit/internal/matmul"
	"github.com/flashkit-go/flashkit/internal/workers"
)

const (
	blockRows = 64      // of an item of work: sums over rows are sums of the blocks' sums
	fewFloats = 1 << 14 // are not worth a helper
)

// A rowWork is work on the rows of tensors, in blocks that workers share. Which of them takes
// a block does not touch what it computes.
type rowWork struct {
	run  func(w *rowWork, block, from, to int)
	rows int
	next atomic.Int64

	norm          *LayerNorm
	dropout       *Dropout
	seed          uint64
	x, y, z, last Tensor
	part          []float32 // sums of each block
	sums          []float64 // one of each block
	targets       []int32
	ignore        int32

	weights, slopes matmul.Matrix // of a head
	seq             flashkit.Seq
	scale           float64
}

// Work takes blocks until none is left.
func (w *rowWork) Work(int) {
	for {
		block := int(w.next.Add(1)) - 1
		if block*blockRows >= w.rows {
			return
		}
		w.run(w, block, block*blockRows, min((block+1)*blockRows, w.rows))
	}
}

// blocks returns how many blocks there are.
func (w *rowWork) blocks() int { return (w.rows + blockRows - 1) / blockRows }

// work returns the Step's work, for its fields to be set, on so many rows.
func (s *Step) startRows(rows int, run func(w *rowWork, block, from, to int)) *rowWork {
	w := &s.rows
	w.rows, w.run = rows, run
	w.next.Store(0)
	return w
}

// do does the Step's work on rows of so many features.
func (s *Step) runRows(features int) {
	if !s.ok(s.ctx.Err()) {
		return
	}
	w, helpers := &s.rows, 0
	if w.rows*features > fewFloats {
		helpers = min(workers.Most(s.Workers), w.blocks()) - 1
	}
	if helpers > 0 {
		s.engine.pool.Run(w, helpers)
	} else {
		w.Work(0)
	}
}

// addBlocks adds the sums of all blocks, in their order, to sum.
func (w *rowWork) addBlocks(sum []float32, from int) {
	each := len(w.part) / max(1, w.blocks())
	if n := w.blocks(); n > 0 {
		elements.Add(sum, w.part[from:], each, n)
	}
}

// addColumns adds to sum the sums of the columns of x.
func addColumns(s *Step, sum []float32, x *Tensor) {
	if s.err != nil {
		return
	}
	w := s.startRows(x.Count(), func(w *rowWork, block, from, to int) {
		part := w.part[block*w.x.Features:][:w.x.Features]
		clear(part)
		elements.Add(part, w.x.Data[from*w.x.stride():], w.x.stride(), to-from)
	})
	w.x, w.part = *x, s.take(w.blocks()*x.Features)
	s.runRows(x.Features)
	w.addBlocks(sum, 0)
}
