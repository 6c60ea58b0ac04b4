// Package matmul multiplies float32 matrices on the CPU: C = act(A B + bias) + residual. B is packed
// in panels: once if it holds weights, else for each call. B, or A and B, may be rounded to bf16 or to
// 8-bit integers: see Precision.
//
// Sums over K have a fixed order. The bits of a row of C do not depend on other rows or on the number
// of goroutines. The bits do depend on the processor's instruction set. Magnitudes below 2^-126 may
// count as 0.
package matmul

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/flashkit-go/flashkit/internal/workers"
)

// A Matrix is a view of float32 memory: element (i, j) is Data[i*RowStride + j*ColStride].
// Strides are at least 0.
type Matrix struct {
	Data                 []float32
	Rows, Cols           int
	RowStride, ColStride int
}

// Dense returns a view of data as contiguous rows.
func Dense(data []float32, rows, cols int) Matrix {
	return Matrix{Data: data, Rows: rows, Cols: cols, RowStride: cols, ColStride: 1}
}

// T returns the transpose, a view of the same memory.
func (m Matrix) T() Matrix {
	return Matrix{Data: m.Data, Rows: m.Cols, Cols: m.Rows, RowStride: m.ColStride, ColStride: m.RowStride}
}

// copyTo copies the elements of a to memory, without gaps between rows. It then sets *a to a view
// of the copy.
func (a *Matrix) copyTo(memory []float32) {
	memory = memory[:a.Rows*a.Cols]
	packPanel(memory, *a, 0, a.Cols)
	*a = Dense(memory, a.Rows, a.Cols)
}

// at returns the address of an element.
func (m *Matrix) at(row, col int) *float32 { return &m.Data[row*m.RowStride+col*m.ColStride] }

// An Activation is a function that is applied to every element.
type Activation uint8

// GELU is x Φ(x), where Φ is the distribution function of the normal distribution. GELUTanh is the
// approximation x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³))) of GELU. SiLU is x/(1 + exp(-x)).
const (
	None Activation = iota
	ReLU
	GELU
	GELUTanh
	SiLU
	activations // number of activations
)

// Args are the arguments of a product. C must not overlap A. Before must overlap neither C nor A.
// Residual is C itself or does not overlap C.
type Args struct {
	C, A       Matrix     // A [M, K], any strides; C [M, N], RowStride at least N, ColStride 1
	B          *Packed    // [K, N]
	Bias       []float32  // [N], or nil
	Activation Activation // applied after the bias
	Before     Matrix     // [M, N] as C; unless Data is nil, gets A B + bias, which a backward pass needs
	Residual   Matrix     // [M, N], ColStride 1; unless Data is nil, added after the activation
	Accumulate bool       // add to C instead of overwriting it
	Workers    int        // most goroutines, 0 for GOMAXPROCS
}

// An Engine runs products. It is safe for concurrent use. A call allocates nothing if the workspace
// of earlier calls is large enough.
type Engine struct {
	last atomic.Pointer[job] // the job of the last call, with its workspace
	jobs sync.Pool           // *job of concurrent calls
	pool *workers.Pool
}

// New returns an engine.
func New() *Engine {
	e := &Engine{jobs: sync.Pool{New: func() any { return new(job) }}, pool: new(workers.Pool)}
	runtime.AddCleanup(e, (*workers.Pool).Close, e.pool)
	return e
}

// Close ends the helper goroutines, unless another pool needs them. Calls in progress finish. Later
// calls run on the caller's goroutine alone. An engine that is garbage collected needs no Close.
func (e *Engine) Close() {
	e.pool.Close()
	e.last.Store(nil)
}

// Run computes a product. For arguments that do not fit together it returns a
// *flashkit.ProblemError and writes nothing. If the context is canceled, Run returns the error of
// the context, and C is undefined.
func (e *Engine) Run(ctx context.Context, a *Args) error {
	if err := a.check(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if a.C.Rows == 0 || a.C.Cols == 0 {
		return nil
	}
	j := e.newJob(ctx.Done())
	j.args = *a
	j.plan()
	e.do(j)
	return ctx.Err()
}

// Pack does the work of p.Pack(b) on several goroutines. The argument most limits their number. If
// most is 0, the limit is GOMAXPROCS.
func (e *Engine) Pack(p *Packed, b Matrix, most int) {
	p.begin(&b, nil)
	if p.empty() {
		return
	}
	j := e.newJob(nil)
	j.packed, j.args.A = p, b
	j.planPacking(most)
	e.do(j)
}

// Apply sets dst[i] = act(x[i]). dst may be x.
func (e *Engine) Apply(ctx context.Context, dst, x []float32, act Activation) error {
	if err := checkElements("dst", len(dst), len(x), act); err != nil {
		return err
	}
	return e.elements(ctx, dst, x, nil, act)
}

// ApplyGrad sets dx[i] = dy[i] * act'(x[i]). dx may be x or dy. The derivative of ReLU is 0
// at 0.
func (e *Engine) ApplyGrad(ctx context.Context, dx, x, dy []float32, act Activation) error {
	if err := checkElements("dx", len(dx), len(x), act); err != nil {
		return err
	}
	if err := checkElements("dy", len(dy), len(x), act); err != nil {
		return err
	}
	return e.elements(ctx, dx, x, dy, act)
}

func (e *Engine) elements(ctx context.Context, dst, x, dy []float32, act Activation) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(x) == 0 {
		return nil
	}
	j := e.newJob(ctx.Done())
	j.dst, j.x, j.dy, j.args.Activation = dst, x, dy, act
	j.planElements()
	e.do(j)
	return ctx.Err()
}

func (e *Engine) newJob(done <-chan struct{}) *job {
	j := e.last.Swap(nil)
	if j == nil {
		j = e.jobs.Get().(*job)
	}
	j.done = done
	return j
}

// do runs a job and returns the job to the engine.
func (e *Engine) do(j *job) {
	j.next.Store(0)
	e.pool.Run(j, j.workers-1)
	j.args, j.done, j.dst, j.x, j.dy, j.packed = Args{}, nil, nil, nil, nil, nil
	if !e.last.CompareAndSwap(nil, j) {
		e.jobs.Put(j)
	}
}
