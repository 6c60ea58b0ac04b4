package nn

import (
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/matmul"
	"github.com/flashkit-go/flashkit/internal/workers"
)

// An Engine runs the computations of layers: attention with a Dispatcher, matrix products with this
// module's own kernels. A program needs only one Engine. An Engine is safe for concurrent use.
type Engine struct {
	attention *dispatch.Dispatcher
	training  *dispatch.Dispatcher // picks forward and backward kernels that sum scores in the same order
	products  *matmul.Engine
	pool      workers.Pool // for work on rows, such as norms and dropout
}

// NewEngine returns an Engine that uses d. Close does not close d. If d is nil, all Steps of the
// Engine fail.
func NewEngine(d *dispatch.Dispatcher) *Engine {
	e := &Engine{attention: d, products: matmul.New()}
	if d != nil {
		e.training = d.Paired()
	}
	return e
}

// Close ends the Engine's goroutines. The Dispatcher stays open. No pass may be in progress.
func (e *Engine) Close() {
	e.products.Close()
	e.pool.Close()
}

// NewStep returns a new Step. One goroutine at a time may use it.
func (e *Engine) NewStep() *Step { return &Step{engine: e} }

// An Activation is an elementwise function between two layers. Programs use an Activation as a
// field of Linear, or as a layer without parameters.
type Activation uint8

// The activations.
const (
	None     Activation = Activation(matmul.None)     // x
	ReLU     Activation = Activation(matmul.ReLU)     // max(x, 0)
	GELU     Activation = Activation(matmul.GELU)     // x Φ(x), computed with the error function
	GELUTanh Activation = Activation(matmul.GELUTanh) // GELU's tanh approximation
	SiLU     Activation = Activation(matmul.SiLU)     // x / (1 + exp(-x))
)

// A Precision is the number type of the factors in a layer's products, such as the weights and the
// rows of a Linear. Sums are float32.
type Precision uint8

// The precisions. bf16 has 8 of float32's 24 significant bits.
//
// Int8 rounds each row to 8-bit integers times the row's scale, and each output feature's weights to
// 8-bit integers times a scale. A scale is the largest magnitude divided by 127. Sums of integers
// are exact, so they are equal on all processors. Int8 is for inference and fails in training. The
// results of a row with NaN or infinity are NaN.
const (
	Float32     Precision = Precision(matmul.Float32)     // no rounding
	BF16Weights Precision = Precision(matmul.BF16Weights) // weights rounded to bf16, in half the memory; for any processor
	BF16        Precision = Precision(matmul.BF16)        // rows also rounded: fast with AMX or AVX512-BF16; the same results, up to the last bits, on other processors
	Int8        Precision = Precision(matmul.Int8)        // rows and weights in 8 bits, in a quarter of the memory; fast with AVX2, AVX512-VNNI or NEON
)
