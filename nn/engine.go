package nn

import (
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/matmul"
	"github.com/flashkit-go/flashkit/internal/workers"
)

// An Engine computes for layers: attention with a Dispatcher, matrix products with its own kernels.
// A program needs one. It is safe for concurrent use.
type Engine struct {
	attention *dispatch.Dispatcher
	training  *dispatch.Dispatcher // both passes use kernels with the same order of summing scores
	products  *matmul.Engine
	pool      workers.Pool // for other work
}

// NewEngine returns an Engine over a Dispatcher, which remains the caller's. Steps fail if it is
// nil.
func NewEngine(d *dispatch.Dispatcher) *Engine {
	e := &Engine{attention: d, products: matmul.New()}
	if d != nil {
		e.training = d.Paired()
	}
	return e
}

// Close ends the Engine's goroutines; the Dispatcher stays open. No pass may be in progress.
func (e *Engine) Close() {
	e.products.Close()
	e.pool.Close()
}

// NewStep returns a Step, for one goroutine at a time.
func (e *Engine) NewStep() *Step { return &Step{engine: e} }

// An Activation is an elementwise function between two layers. It is a field of Linear, or a layer
// without parameters.
type Activation uint8

// The activations.
const (
	None     Activation = Activation(matmul.None)     // x
	ReLU     Activation = Activation(matmul.ReLU)     // max(x, 0)
	GELU     Activation = Activation(matmul.GELU)     // x Φ(x), by the error function
	GELUTanh Activation = Activation(matmul.GELUTanh) // GELU's tanh approximation
)

// A Precision is the type of a Linear layer's multiplicands. Sums are float32.
type Precision uint8

// The precisions. bf16 has 8 of float32's 24 significant bits.
const (
	Float32     Precision = Precision(matmul.Float32)     // no rounding
	BF16Weights Precision = Precision(matmul.BF16Weights) // weights rounded to bf16, in half the memory; any processor
	BF16        Precision = Precision(matmul.BF16)        // rows too: fast with AMX or AVX512-BF16; on others the same up to the last bits
)
