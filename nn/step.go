package nn

import (
	"context"
	"errors"
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/matmul"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// A Step is one pass through layers in progress: Begin, Forward of some layers, in training
// Backward of the same ones in the other order, Err. Then it can begin again, and has all
// the memory that it takes.
//
// Tensors that layers return lie in the Step's memory and are valid until the next Begin.
// What is given to a Forward in training must not change before its Backward.
type Step struct {
	// Workers is how many goroutines a product or an attention may use at most; 0 is no
	// limit but GOMAXPROCS. Results do not depend on it.
	Workers int

	engine *Engine
	ctx    context.Context
	err    error

	train      bool
	seed, step uint64 // of dropout
	site       uint32 // how many dropouts there were in this pass

	saved   arena    // of Forward; in inference it is given back as layers end
	scratch arena    // of Backward
	stack   []record // what Forward saved
	back    bool     // Backward has begun, and the stack is not empty yet

	mm     matmul.Args // the call in progress, so that none is allocated
	packed [3]matmul.Packed
	args   flashkit.Args
	seqs   flashkit.Sequences
	call   flashkit.Call
	rows   rowWork
}

// A record is what a layer has saved for its backward pass.
type record struct {
	owner any // a pointer to the layer
	x     Tensor
	seed  uint64
	ids   []int32
}

// Begin begins a pass of inference: nothing is saved, and dropout does nothing.
func (s *Step) Begin(ctx context.Context) { s.begin(ctx, false, 0, 0) }

// BeginTraining begins a pass of training. Dropout depends on the seed and on the number of
// the step, and on nothing else.
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

// Train reports whether the pass is one of training.
func (s *Step) Train() bool { return s.train }

// Fail makes err the Step's error, if there is none yet.
func (s *Step) Fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// ok makes err the Step's error and reports whether the pass can go on.
func (s *Step) ok(err error) bool {
	if s.err == nil && s.ctx == nil {
		s.err = s.Err()
	}
	if s.err == nil {
		s.err = err
	}
	return s.err == nil
}

// takes makes it the Step's error, if x is not what a layer takes, and reports whether the
// pass can go on. 0 features and nil rows are any.
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

// failIn makes it the Step's error that something of a layer is wrong.
func (s *Step) failIn(layer string, err error) {
	if p, ok := err.(*flashkit.ProblemError); ok {
		err = &flashkit.ProblemError{Field: layer + ": " + p.Field, Value: p.Value, Reason: p.Reason}
	}
	s.Fail(err)
}

// Memory returns the bytes of the Step's memory, which is what the largest passes so far
// have taken at most: activations and what they are computed with.
func (s *Step) Memory() int { return 4 * (s.saved.size() + s.scratch.size()) }

// NewTensor returns a tensor of the Step's memory, of any values.
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

// A Mark is a place in a Step's memory.
type Mark struct {
	arena *arena
	at    position
}

// Mark returns the place from which on memory can be given back by Keep. In the forward
// pass of training nothing can.
func (s *Step) Mark() Mark {
	switch {
	case s.back:
		return Mark{&s.scratch, s.scratch.at}
	case s.train:
		return Mark{}
	}
	return Mark{&s.saved, s.saved.at}
}

// Keep gives back all memory that was taken since m, but for x, which it moves there.
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

// Push saves x for the backward pass of a layer, of which owner is a pointer. In inference
// it does nothing.
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

// Pop returns what owner has pushed last. That something else was pushed since then is an
// error: Backward runs in the reverse order of Forward.
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

// nextSeed returns the seed of the next dropout of this pass.
func (s *Step) nextSeed() uint64 {
	w := philox.Words([4]uint32{s.site, 0, uint32(s.step), uint32(s.step >> 32)}, philox.Key(s.seed))
	s.site++
	return uint64(w[0]) | uint64(w[1])<<32
}

// pack makes s.packed[i] of m, for a product of this pass.
func (s *Step) pack(i int, m matmul.Matrix) { s.engine.products.Pack(&s.packed[i], m, s.Workers) }

// multiply runs the product that s.mm describes.
func (s *Step) multiply() {
	s.mm.Workers = s.Workers
	s.ok(s.engine.products.Run(s.ctx, &s.mm))
}

// Add returns the sum of tensors of one shape.
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

func addRows(w *rowWork, _, from, to int) {
	for i := from; i < to; i++ {
		a, b, sum := w.x.Row(i), w.y.Row(i), w.z.Row(i)
		b, sum = b[:len(a)], sum[:len(a)]
		for j, v := range a {
			sum[j] = v + b[j]
		}
	}
}
