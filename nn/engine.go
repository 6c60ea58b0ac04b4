package nn

import (
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/matmul"
	"github.com/flashkit-go/flashkit/internal/workers"
)

// An Engine computes for layers: attention through a Dispatcher, products with weights by
// kernels of its own. It is safe for concurrent use.
type Engine struct {
	attention *dispatch.Dispatcher
	training  *dispatch.Dispatcher // both passes on kernels that sum scores alike
	products  *matmul.Engine
	pool      workers.Pool // for all else
}

// NewEngine returns an Engine over a Dispatcher, which stays the caller's. Steps fail if it
// is nil.
func NewEngine(d *dispatch.Dispatcher) *Engine {
	e := &Engine{attention: d, products: matmul.New()}
	if d != nil {
		e.training = d.Paired()
	}
	return e
}

// Close gives back the Engine's goroutines, and leaves the Dispatcher open. No pass may be
// in progress.
func (e *Engine) Close() {
	e.products.Close()
	e.pool.Close()
}

// NewStep returns a Step, which one goroutine at a time may use.
func (e *Engine) NewStep() *Step { return &Step{engine: e} }

// An Activation is a function of each element between two layers.
type Activation uint8

// The activations.
const (
	None     Activation = Activation(matmul.None)
	ReLU     Activation = Activation(matmul.ReLU)     // max(x, 0)
	GELU     Activation = Activation(matmul.GELU)     // x Φ(x), by the error function
	GELUTanh Activation = Activation(matmul.GELUTanh) // its approximation by tanh
)

// A Precision is of the products of a layer: what it multiplies. Sums are float32.
type Precision uint8

// The precisions. bf16 has 8 bits of the 24 of float32.
const (
	Float32     Precision = Precision(matmul.Float32)
	BF16Weights Precision = Precision(matmul.BF16Weights) // weights rounded to bf16, in half the memory; any processor
	BF16        Precision = Precision(matmul.BF16)        // rows too: fast by AMX or AVX512-BF16, the same but for the last bits without
)
