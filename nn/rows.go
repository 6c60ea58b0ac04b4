package nn

import (
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/elements"
	"github.com/flashkit-go/flashkit/internal/matmul"
	"github.com/flashkit-go/flashkit/internal/workers"
)

const (
	blockRows = 64      // rows of a block; a sum over rows adds the sums of blocks in order
	fewFloats = 1 << 14 // less work runs in the caller's goroutine alone
)

// A rowWork is work on rows of tensors. Workers take blocks of rows. Results do not depend on which
// worker takes a block.
type rowWork struct {
	run  func(w *rowWork, block, from, to int)
	rows int
	next atomic.Int64

	norm          *LayerNorm
	rms           *RMSNorm
	rotary        *Rotary
	rotation      *rotation
	heads         int     // of the rows that rotary rotates
	starts        []int32 // position of the first row of each sequence, or nil
	sign          float32 // of the angles
	dropout       *Dropout
	seed          uint64
	x, y, z, last Tensor
	half          []uint16  // elements of x or y in bf16, without gaps
	part          []float32 // sums of each block, consecutive
	sums          []float64 // one sum per block
	targets       []int32
	ignore        int32

	weights, slopes matmul.Matrix // of a head: its attention weights, and their gradients
	seq             flashkit.Seq
	scale           float64
}

// Work computes blocks of rows until none is left.
func (w *rowWork) Work(int) {
	for {
		block := int(w.next.Add(1)) - 1
		if block*blockRows >= w.rows {
			return
		}
		w.run(w, block, block*blockRows, min((block+1)*blockRows, w.rows))
	}
}

func (w *rowWork) blocks() int { return (w.rows + blockRows - 1) / blockRows }

// startRows prepares the Step's rowWork for the given number of rows and returns it. The caller
// sets the fields that run needs.
func (s *Step) startRows(rows int, run func(w *rowWork, block, from, to int)) *rowWork {
	w := &s.rows
	w.rows, w.run = rows, run
	w.next.Store(0)
	return w
}

// runRows runs the work that startRows has prepared. features measures the cost of one row: the
// row's number of features, or a multiple of this number. If the work is small, runRows starts no
// helper goroutines.
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

// addBlocks adds the sums of all blocks to sum, in the order of the blocks. In the block's section
// of w.part, the block's sums begin at index `from`.
func (w *rowWork) addBlocks(sum []float32, from int) {
	each := len(w.part) / max(1, w.blocks())
	if n := w.blocks(); n > 0 {
		elements.Add(sum, w.part[from:], each, n)
	}
}

// addColumns adds the column sums of x to sum.
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
