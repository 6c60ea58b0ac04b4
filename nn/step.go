package nn

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/matmul"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// A Step is a pass through layers. A program calls Begin or BeginTraining, then Forward of the
// layers. In training it then calls Backward of the same layers in reverse order. Last, it calls
// Err. The next Begin starts another pass in the same memory.
//
// Tensors that layers return are in the Step's memory and valid until the next Begin. In training,
// Forward's inputs must not change before Backward.
type Step struct {
	// Workers is the maximum number of goroutines that a layer uses at a time. 0 means GOMAXPROCS.
	// Results do not depend on Workers.
	Workers int

	engine *Engine
	ctx    context.Context
	err    error

	train      bool
	seed, step uint64 // select the dropout masks
	site       uint32 // number of dropouts so far in this pass

	saved   arena    // memory of Forward; in inference, Keep frees it
	scratch arena    // memory of Backward
	stack   []record // records of Forward
	back    bool     // Backward has begun and the stack is not yet empty

	mm     matmul.Args // arguments of calls are fields, so that calls do not allocate
	packed [3]matmul.Packed
	args   flashkit.Args
	seqs   flashkit.Sequences
	prefix dispatch.Prefix
	call   flashkit.Call
	rows   rowWork
}

// A record is a layer's data for its backward pass.
type record struct {
	owner any // a pointer to the layer
	x     Tensor
	seed  uint64
	ids   []int32
}

// Begin begins an inference pass: layers record nothing, and dropout does nothing. The pass fails
// once ctx is done.
func (s *Step) Begin(ctx context.Context) { s.begin(ctx, false, 0, 0) }

// BeginTraining begins a training pass. step is the number of the training step. The dropout masks
// depend only on seed and step. The pass fails once ctx is done.
func (s *Step) BeginTraining(ctx context.Context, seed, step uint64) { s.begin(ctx, true, seed, step) }

func (s *Step) begin(ctx context.Context, train bool, seed, step uint64) {
	s.ctx, s.err, s.train, s.seed, s.step, s.site, s.back = ctx, nil, train, seed, step, 0, false
	s.saved.reset()
	s.scratch.reset()
	clear(s.stack)
	s.stack = s.stack[:0]
	switch {
	case s.engine == nil || s.engine.attention == nil:
		s.err = errors.New("nn: the Step has no Engine with a Dispatcher: see NewEngine and Engine.NewStep")
	case ctx == nil:
		s.err = errors.New("nn: the context of the Step is nil")
	case s.Workers < 0:
		s.err = problem("Step.Workers", s.Workers, "must be at least 1, or 0 for no limit")
	}
}

// Err returns the first error since Begin, or nil.
func (s *Step) Err() error {
	if s.ctx == nil && s.err == nil {
		return errors.New("nn: the Step has not begun")
	}
	return s.err
}

// Train reports whether the pass is a training pass.
func (s *Step) Train() bool { return s.train }

// Fail sets the Step's error, unless an error is already set. Fail is exported for layers of other
// packages.
func (s *Step) Fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// infers reports whether the pass can continue with a function that is for inference.
func (s *Step) infers(what string) bool {
	if s.train {
		s.Fail(trainingError(what))
	}
	return s.ok(nil)
}

func trainingError(what string) error {
	return fmt.Errorf("nn: %s is for inference; the Step is in training", what)
}

// ok sets the Step's error if there is none, and reports whether the pass can continue.
func (s *Step) ok(err error) bool {
	if s.err == nil && s.ctx == nil {
		s.err = s.Err()
	}
	if s.err == nil {
		s.err = err
	}
	return s.err == nil
}

// accepts reports whether x is valid and has the given features and rows, and no error has
// occurred. If not, the Step fails. If features is 0, x may have any number of features. If rows is
// nil, x may have any Rows.
func (s *Step) accepts(layer, what string, x *Tensor, features int, rows *Rows) bool {
	if !s.ok(nil) {
		return false
	}
	err := x.check(what, features)
	if err == nil && rows != nil && !x.Rows.equal(rows) {
		err = problem(what+".Rows", x.Rows, "must be %v", *rows)
	}
	if err != nil {
		s.failIn(layer, err)
	}
	return err == nil
}

// failIn fails the Step with err. It adds the layer's name to the field of a
// *flashkit.ProblemError.
func (s *Step) failIn(layer string, err error) {
	if p, ok := err.(*flashkit.ProblemError); ok {
		err = &flashkit.ProblemError{Field: layer + ": " + p.Field, Value: p.Value, Reason: p.Reason}
	}
	s.Fail(err)
}

// Memory returns the number of bytes that the Step holds for activations and scratch. The number
// grows to the largest need of a pass so far.
func (s *Step) Memory() int { return 4 * (s.saved.size() + s.scratch.size()) }

// NewTensor returns an uninitialized tensor in the Step's memory.
func (s *Step) NewTensor(rows Rows, features int) Tensor {
	if !s.ok(rows.check("NewTensor")) {
		return Tensor{}
	}
	if n := rows.Count(); features < 1 || n > 0 && features > math.MaxInt/8/n {
		s.Fail(problem("NewTensor.features", features, "must be at least 1, and with %d rows at most %d elements", n, math.MaxInt/8))
		return Tensor{}
	}
	return Tensor{Data: s.take(rows.Count() * features), Features: features, Rows: rows}
}

func (s *Step) take(n int) []float32 {
	if s.back {
		return s.scratch.take(n)
	}
	return s.saved.take(n)
}

// A Mark is a position in a Step's memory. Keep frees the memory above the position.
type Mark struct {
	arena *arena
	at    position
}

// Mark returns the current position, for a later Keep. In the forward pass of training, Keep frees
// nothing.
func (s *Step) Mark() Mark {
	switch {
	case s.back:
		return Mark{&s.scratch, s.scratch.at}
	case s.train:
		return Mark{}
	}
	return Mark{&s.saved, s.saved.at}
}

// Keep frees all memory allocated since m, except x. It moves x to the position m and returns the
// moved x.
func (s *Step) Keep(m Mark, x Tensor) Tensor {
	if m.arena == nil || s.err != nil {
		return x
	}
	m.arena.at = m.at
	y := Tensor{Data: m.arena.take(x.Count() * x.Features), Features: x.Features, Rows: x.Rows}
	if x.isDense() {
		copy(y.Data, x.Data[:len(y.Data)])
		return y
	}
	for i := range x.Count() {
		copy(y.Row(i), x.Row(i))
	}
	return y
}

// Push records x for a layer's backward pass. owner is a pointer to the layer. In inference Push
// does nothing.
func (s *Step) Push(owner any, x Tensor) { s.push(record{owner: owner, x: x}) }

func (s *Step) push(r record) {
	if !s.train || s.err != nil {
		return
	}
	if s.back {
		s.Fail(errors.New("nn: Forward after Backward has begun and before it is at its end"))
		return
	}
	s.stack = append(s.stack, r)
}

// Pop removes the last record and returns its tensor. Backward must run in the reverse order of
// Forward. So the Step fails if owner is not the layer that pushed the record.
func (s *Step) Pop(owner any) Tensor { return s.pop(owner).x }

func (s *Step) pop(owner any) record {
	n := len(s.stack) - 1
	switch {
	case !s.ok(nil):
		return record{}
	case n < 0:
		s.Fail(errors.New("nn: Backward without a Forward in training"))
		return record{}
	case s.stack[n].owner != owner:
		s.Fail(errors.New("nn: Backward is not in the reverse order of Forward"))
		return record{}
	}
	r := s.stack[n]
	s.stack[n] = record{}
	s.stack = s.stack[:n]
	s.back = n > 0
	return r
}

// nextSeed returns the seed of the next dropout in this pass.
func (s *Step) nextSeed() uint64 {
	w := philox.Words([4]uint32{s.site, 0, uint32(s.step), uint32(s.step >> 32)}, philox.Key(s.seed))
	s.site++
	return uint64(w[0]) | uint64(w[1])<<32
}

// pack copies m, the second factor of a product, to s.packed[i], in the layout that the matrix
// kernels read.
func (s *Step) pack(i int, m matmul.Matrix) { s.engine.products.Pack(&s.packed[i], m, s.Workers) }

func (s *Step) multiply() {
	s.mm.Workers = s.Workers
	s.ok(s.engine.products.Run(s.ctx, &s.mm))
}

// Add returns the elementwise sum of tensors of one shape. It pushes no record: the gradient of
// each summand is the gradient of the sum.
func (s *Step) Add(x Tensor, others ...Tensor) Tensor {
	if !s.accepts("Add", "x", &x, 0, nil) {
		return Tensor{}
	}
	y := s.NewTensor(x.Rows, x.Features)
	for k := range others {
		if !s.accepts("Add", "x", &others[k], x.Features, &x.Rows) {
			return Tensor{}
		}
		w := s.startRows(x.Count(), addRows)
		w.x, w.y, w.z = x, others[k], y
		s.runRows(x.Features)
		x = y
	}
	return x
}

// AddTo adds x to y elementwise, for tensors of one shape. It is for inference and fails in training.
func (s *Step) AddTo(y, x Tensor) {
	if s.infers("AddTo") && s.accepts("AddTo", "y", &y, 0, nil) && s.accepts("AddTo", "x", &x, y.Features, &y.Rows) {
		w := s.startRows(x.Count(), addRows)
		w.x, w.y, w.z = y, x, y
		s.runRows(x.Features)
	}
}

func addRows(w *rowWork, _, from, to int) {
	for i := from; i < to; i++ {
		a, b, sum := w.x.Row(i), w.y.Row(i), w.z.Row(i)
		b, sum = b[:len(a)], sum[:len(a)]
		for j, v := range a {
			sum[j] = v + b[j]
		}
	}
}
