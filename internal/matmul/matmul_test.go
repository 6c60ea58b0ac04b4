package matmul_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/matmul"
)

// seeded returns a random generator. The log names its seed, which FLASHKIT_SEED can set.
func seeded(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	if x, err := strconv.ParseUint(os.Getenv("FLASHKIT_SEED"), 10, 64); err == nil {
		seed = x
	}
	t.Logf("FLASHKIT_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// A product is a test case: the arguments, the unpacked B and the old C.
type product struct {
	matmul.Args
	b   matmul.Matrix
	old matmul.Matrix // of C
}

// shape is the shape of a drawn product.
type shape struct{ m, n, k int }

func (s shape) String() string { return fmt.Sprintf("m%d-n%d-k%d", s.m, s.n, s.k) }

// draw returns a product of random numbers. The bits of form select its features.
func draw(r *rand.Rand, s shape, form uint) *product {
	has := func(bit uint) bool { return form>>bit&1 != 0 }
	p := &product{b: random(r, s.k, s.n, has(0), has(1))}
	p.A = random(r, s.m, s.k, has(2), has(3))
	p.old = random(r, s.m, s.n, false, has(4))
	p.C = p.old
	p.C.Data = append([]float32(nil), p.old.Data...)
	if p.Accumulate = has(5); !p.Accumulate {
		poison(p.C)
	}
	if has(6) {
		p.Bias = random(r, 1, s.n, false, false).Data[:s.n]
	}
	if has(7) {
		p.Residual = random(r, s.m, s.n, false, has(0))
	}
	if has(8) {
		p.Before = random(r, s.m, s.n, false, has(1))
		poison(p.Before)
	}
	p.Activation = matmul.Activation(form >> 9 & 7 % 5)
	p.B = &matmul.Packed{Precision: matmul.Precision(form >> 12 % uint(matmul.Precisions))}
	p.B.Pack(p.b)
	return p
}

const forms = uint(matmul.Precisions) << 12

// someForms returns all forms in random order, or some of them in short tests.
func someForms(r *rand.Rand) []int {
	list := r.Perm(int(forms))
	if testing.Short() {
		list = list[:forms/32]
	}
	return list
}

// random returns a matrix of numbers of about 1, optionally transposed or with gaps between rows.
func random(r *rand.Rand, rows, cols int, transposed, gaps bool) matmul.Matrix {
	if transposed {
		return random(r, cols, rows, false, gaps).T()
	}
	m := matmul.Dense(nil, rows, cols)
	if gaps {
		m.RowStride += 1 + r.IntN(70)
	}
	m.Data = make([]float32, max(1, (rows-1)*m.RowStride+cols))
	for i := range m.Data {
		m.Data[i] = float32(r.NormFloat64())
	}
	return m
}

// poison sets the elements of a matrix to NaN, but not the gaps between rows.
func poison(m matmul.Matrix) {
	each(m, func(_, _ int, x *float32) { *x = float32(math.NaN()) })
}

func each(m matmul.Matrix, f func(i, j int, x *float32)) {
	for i := range m.Rows {
		for j := range m.Cols {
			f(i, j, &m.Data[i*m.RowStride+j*m.ColStride])
		}
	}
}

func at(m matmul.Matrix, i, j int) float64 { return float64(m.Data[i*m.RowStride+j*m.ColStride]) }

const eps = 0x1p-24

// check compares C and Before with the product in float64. The bound covers sums of K products in
// any order, and two roundings for each later step. The steepest slope of an activation scales the
// error of its argument.
func (p *product) check(t testing.TB, msg string) {
	a, b := p.operands()
	for i := range p.C.Rows {
		for j := range p.C.Cols {
			sum, size := 0.0, 0.0
			for k := range p.A.Cols {
				x := at(a, i, k) * at(b, k, j)
				sum, size = sum+x, size+math.Abs(x)
			}
			if p.Bias != nil {
				sum, size = sum+float64(p.Bias[j]), size+math.Abs(float64(p.Bias[j]))
			}
			bound := float64(p.A.Cols+4)*eps*size + 0x1p-120*float64(p.A.Cols+1)
			if p.Before.Data != nil {
				within(t, sum, at(p.Before, i, j), bound, "%s before[%d][%d]", msg, i, j)
			}
			want := activation(p.Activation, sum)
			bound = steepest*bound + activationBound(p.Activation, sum)
			if p.Residual.Data != nil {
				want += at(p.Residual, i, j)
				bound += 2 * eps * math.Abs(want)
			}
			if p.Accumulate {
				want += at(p.old, i, j)
				bound += 2 * eps * math.Abs(want)
			}
			within(t, want, at(p.C, i, j), bound, "%s c[%d][%d]", msg, i, j)
		}
	}
}

// steepest is above the slope of any activation.
const steepest = 1.13

// within fails if got differs from want by more than bound. It accepts the same infinity, and any
// NaN for NaN.
func within(t testing.TB, want, got, bound float64, msg string, args ...any) {
	if want == got || want != want && got != got {
		return
	}
	if !(math.Abs(want-got) <= bound) || math.IsInf(want, 0) {
		require.Failf(t, "out of bound", msg+": %g, not %g within %g", append(args, got, want, bound)...)
	}
}

// activation is the reference for act(x), in float64.
func activation(act matmul.Activation, x float64) float64 {
	switch {
	case act == matmul.ReLU && x < 0:
		return 0
	case act >= matmul.GELU && math.IsInf(x, -1):
		return 0
	case act == matmul.GELU:
		return x * math.Erfc(-x/math.Sqrt2) / 2
	case act == matmul.GELUTanh:
		return x / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	case act == matmul.SiLU:
		return x / (1 + math.Exp(-x))
	}
	return x
}

// activationBound bounds the error of an activation of an exact number.
func activationBound(act matmul.Activation, x float64) float64 {
	if act <= matmul.ReLU {
		return 0
	}
	return 6*eps*math.Abs(x) + 0x1p-120
}

func run(t testing.TB, e *matmul.Engine, p *product) {
	require.NoError(t, e.Run(context.Background(), &p.Args))
}

// Products of every form, and of shapes with several items or partial sums, are within the bounds
// of check.
func TestAgainstFloat64(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		r, e := seeded(t), matmul.New()
		defer e.Close()
		for _, form := range someForms(r) {
			s := shape{r.IntN(20), r.IntN(120), r.IntN(40)}
			p := draw(r, s, uint(form))
			run(t, e, p)
			p.check(t, fmt.Sprintf("%v form %d", s, form))
		}
		k := matmul.MostK
		for _, s := range []shape{{1, 1, k}, {20, 50, 2*k + 3}, {3, 1000, 10}, {70, 5, 5 * k}, {8, 48, k + 1}, {129, 20, 2 * k}, {300, 17, 33}} { // some have several partial sums
			form := uint(r.Uint32()) % forms
			p := draw(r, s, form)
			run(t, e, p)
			p.check(t, fmt.Sprintf("%v form %d", s, form))
		}
	})
}

// Products are within the bounds of check for every tail of M and N up to two tiles, and for K from
// 0 to MostK + 8.
func TestTails(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		r, e := seeded(t), matmul.New()
		defer e.Close()
		rows, cols := matmul.Tile()
		for m := range 2*rows + 2 {
			for n := range 2*cols + 2 {
				s := shape{m, n, r.IntN(20)}
				form := uint(r.Uint32()) % forms
				p := draw(r, s, form)
				run(t, e, p)
				p.check(t, fmt.Sprintf("%v form %d", s, form))
			}
		}
		for k := range matmul.MostK + 9 {
			p := draw(r, shape{1 + r.IntN(3), 1 + r.IntN(5), k}, uint(k)|uint(r.Uint32()%3)<<11)
			run(t, e, p)
			p.check(t, fmt.Sprintf("k %d", k))
		}
	})
}

// Products of one row, with or without bias, old C and partial sums, are within the bounds of check.
func TestOneRow(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		r, e := seeded(t), matmul.New()
		defer e.Close()
		for range 40 {
			s := shape{1, 1 + r.IntN(900), r.IntN(2*matmul.MostK + 9)}
			form := uint(r.Uint32()) & (1<<0 | 1<<1 | 1<<5 | 1<<6)
			p := draw(r, s, form)
			p.Workers = r.IntN(5)
			run(t, e, p)
			p.check(t, fmt.Sprintf("%v form %d", s, form))
		}
	})
}

// A product changes neither the gaps between rows of its outputs nor its inputs.
func TestNothingElseIsWritten(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		r, e := seeded(t), matmul.New()
		defer e.Close()
		for range 200 {
			p := draw(r, shape{1 + r.IntN(30), 1 + r.IntN(120), r.IntN(30)}, uint(r.Uint32())%forms|1<<4|1<<1)
			type memory struct {
				m      matmul.Matrix
				before []float32
				output bool
			}
			list := []memory{{m: p.C, output: true}, {m: p.Before, output: true}, {m: p.A}, {m: p.Residual}, {m: matmul.Dense(p.Bias, 1, len(p.Bias))}}
			for i := range list {
				list[i].before = append([]float32(nil), list[i].m.Data...)
			}
			run(t, e, p)
			for i, x := range list {
				if x.output && x.m.Data != nil {
					each(x.m, func(i, j int, v *float32) { x.before[i*x.m.RowStride+j] = *v })
				}
				require.Equal(t, bitsOf(x.before), bitsOf(x.m.Data), "memory %d", i)
			}
		}
	})
}

func bitsOf(x []float32) []uint32 {
	b := make([]uint32, len(x))
	for i, v := range x {
		b[i] = math.Float32bits(v)
	}
	return b
}

// C may be its own residual.
func TestResidualInPlace(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		r, e := seeded(t), matmul.New()
		defer e.Close()
		for form := range uint(32) {
			p := draw(r, shape{9, 50, matmul.MostK + 1}, form<<6&^(1<<7))
			copy(p.C.Data, p.old.Data)
			p.Residual = p.C
			run(t, e, p)
			p.Residual = p.old
			p.check(t, fmt.Sprintf("form %d", form))
		}
	})
}

// Rows have the same bits in any batch, at any position, with any neighbors and any number of workers.
func TestBitsOfRows(t *testing.T) {
	before := runtime.GOMAXPROCS(4)
	defer runtime.GOMAXPROCS(before)
	matmul.EachISA(t, func(t *testing.T) {
		r, e := seeded(t), matmul.New()
		defer e.Close()
		for range 8 {
			s := shape{200, 1 + r.IntN(200), 1 + r.IntN(500)}
			p := draw(r, s, uint(r.Uint32())%forms&^(1<<5))
			run(t, e, p)
			for range 10 {
				from := r.IntN(s.m)
				to := from + 1 + r.IntN(min(20, s.m-from))
				switch r.IntN(4) {
				case 0:
					to = s.m
				case 1:
					to = from + 1
				}
				x := *p
				x.A, x.C, x.Residual, x.Before = rowsOf(p.A, from, to), matmul.Dense(make([]float32, (to-from)*s.n), to-from, s.n), rowsOf(p.Residual, from, to), matmul.Matrix{}
				x.A = copied(x.A, r.IntN(2) == 0)
				x.Workers = r.IntN(5)
				poison(x.C)
				run(t, e, &x)
				each(x.C, func(i, j int, got *float32) {
					want := p.C.Data[(from+i)*p.C.RowStride+j]
					if math.Float32bits(want) != math.Float32bits(*got) {
						require.Failf(t, "bits", "%v row %d column %d alone from %d to %d: %g, not %g", s, from+i, j, from, to, *got, want)
					}
				})
			}
		}
	})
}

func rowsOf(m matmul.Matrix, from, to int) matmul.Matrix {
	if m.Data != nil {
		m.Data, m.Rows = m.Data[from*m.RowStride:], to-from
	}
	return m
}

// copied returns a matrix of the same numbers with other strides.
func copied(m matmul.Matrix, transposed bool) matmul.Matrix {
	x := matmul.Dense(make([]float32, m.Rows*m.Cols), m.Rows, m.Cols)
	if transposed {
		x = matmul.Dense(x.Data, m.Cols, m.Rows).T()
	}
	each(x, func(i, j int, v *float32) { *v = float32(at(m, i, j)) })
	return x
}

// NaN and infinity affect only their row or column, by the rules of arithmetic.
func TestNotFinite(t *testing.T) {
	special := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), 1e18, 0x1p-126}
	matmul.EachISA(t, func(t *testing.T) {
		r, e := seeded(t), matmul.New()
		defer e.Close()
		for _, form := range someForms(r) {
			p := draw(r, shape{1 + r.IntN(20), 1 + r.IntN(60), 1 + r.IntN(20)}, uint(form))
			for _, m := range []matmul.Matrix{p.A, p.b, p.Residual, matmul.Dense(p.Bias, 1, len(p.Bias))} {
				if m.Rows*m.Cols > 0 && r.IntN(2) == 0 {
					x := special[r.IntN(len(special))]
					if r.IntN(2) == 0 {
						x = special[r.IntN(3)]
					}
					m.Data[r.IntN(m.Rows)*m.RowStride+r.IntN(m.Cols)*m.ColStride] = float32(x)
				}
			}
			p.B.Pack(p.b)
			run(t, e, p)
			p.check(t, fmt.Sprintf("form %d", form))
		}
	})
}

func TestWarmCallsAllocateNothing(t *testing.T) {
	r, e := seeded(t), matmul.New()
	defer e.Close()
	p := draw(r, shape{40, 100, 300}, 1<<6|2<<9)
	x := make([]float32, 50_000)
	ctx := t.Context()
	require.Zero(t, allocs.PerRun(20, func() {
		args := p.Args
		if err := e.Run(ctx, &args); err != nil {
			t.Error(err)
		}
	}))
	require.Zero(t, allocs.PerRun(20, func() { p.B.Pack(p.b) }))
	require.Zero(t, allocs.PerRun(20, func() {
		if e.Apply(ctx, x, x, matmul.GELU) != nil || e.ApplyGrad(ctx, x, x, x, matmul.GELU) != nil {
			t.Error("fails")
		}
	}))
}

func TestConcurrentCalls(t *testing.T) {
	before := runtime.GOMAXPROCS(4)
	defer runtime.GOMAXPROCS(before)
	r, e := seeded(t), matmul.New()
	defer e.Close()
	var wait sync.WaitGroup
	for range 8 {
		s, form := shape{60 + r.IntN(100), 100 + r.IntN(100), 200 + r.IntN(300)}, uint(r.Uint32())%forms
		p := draw(r, s, form&^(1<<5))
		run(t, e, p)
		wait.Go(func() {
			for range 20 {
				x := *p
				x.C = matmul.Dense(make([]float32, s.m*s.n), s.m, s.n)
				x.Before = matmul.Matrix{}
				poison(x.C)
				if err := e.Run(context.Background(), &x.Args); err != nil {
					t.Error(err)
				}
				each(x.C, func(i, j int, got *float32) {
					if want := p.C.Data[i*p.C.RowStride+j]; math.Float32bits(want) != math.Float32bits(*got) {
						t.Errorf("%v c[%d][%d] = %g, not %g", s, i, j, *got, want)
					}
				})
			}
		})
	}
	wait.Wait()
}

// A call with a canceled context writes nothing. A call canceled midway returns the error. A closed
// engine still works.
func TestCanceledAndClosed(t *testing.T) {
	r, e := seeded(t), matmul.New()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := draw(r, shape{5, 6, 7}, 0)
	require.ErrorIs(t, e.Run(ctx, &p.Args), context.Canceled)
	each(p.C, func(_, _ int, x *float32) { require.True(t, *x != *x) })
	x := []float32{-1}
	require.ErrorIs(t, e.Apply(ctx, x, x, matmul.ReLU), context.Canceled)
	require.ErrorIs(t, e.ApplyGrad(ctx, x, x, x, matmul.ReLU), context.Canceled)
	require.Equal(t, []float32{-1}, x)

	long := draw(r, shape{3000, 2000, 2000}, 0)
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, e.Run(ctx, &long.Args), context.DeadlineExceeded)
	e.Close()
	run(t, e, p)
	p.check(t, "closed")
}

func TestErrors(t *testing.T) {
	e := matmul.New()
	defer e.Close()
	r := seeded(t)
	for _, c := range []struct {
		want string
		make func(p *product)
	}{
		{"B = nil", func(p *product) { p.B = nil }},
		{"A.Rows = 3", func(p *product) { p.A.Rows = 3 }},
		{"A.Cols = -1", func(p *product) { p.A.Cols = -1 }},
		{"A.RowStride = -1", func(p *product) { p.A.RowStride = -1 }},
		{"A.ColStride = -1", func(p *product) { p.A.ColStride = -1 }},
		{"A.Data = 0", func(p *product) { p.A.Data = nil }},
		{"A.Data = 30", func(p *product) { p.A.RowStride = math.MaxInt }},
		{"A.Data = 30", func(p *product) { p.A.ColStride = math.MaxInt/2 + 1 }},
		{"C.Rows = -1", func(p *product) { p.C.Rows, p.A.Rows = -1, -1 }},
		{"C.Cols = 6", func(p *product) { p.C.Cols = 6 }},
		{"C.ColStride = 2", func(p *product) { p.C.ColStride = 2 }},
		{"C.RowStride = 6", func(p *product) { p.C.RowStride = 6 }},
		{"C.Data = 34", func(p *product) { p.C.Data = p.C.Data[:34] }},
		{"Bias = 6", func(p *product) { p.Bias = make([]float32, 6) }},
		{"Activation = 5", func(p *product) { p.Activation = 5 }},
		{"Before.RowStride = 0", func(p *product) { p.Before = p.C; p.Before.RowStride = 0 }},
		{"Residual.Data = 1", func(p *product) { p.Residual = p.C; p.Residual.Data = p.C.Data[:1] }},
		{"Workers = -1", func(p *product) { p.Workers = -1 }},
		{"B.Precision = 4", func(p *product) { p.B.Precision = 4; p.B.Pack(p.b) }},
		{"B.Rows = 131073", func(p *product) {
			p.B.Precision = matmul.Int8
			p.B.Pack(matmul.Dense(make([]float32, 1<<17+1), 1<<17+1, 1))
		}},
		{"B.Data = 3", func(p *product) { p.B.Pack(matmul.Dense(make([]float32, 3), 6, 7)) }},
		{"B.Rows = -1", func(p *product) { p.B.Pack(matmul.Matrix{Rows: -1}) }},
		{"B.Data = 9", func(p *product) {
			p.B.Pack(matmul.Matrix{Data: make([]float32, 9), Rows: math.MaxInt/8 + 1, Cols: 9, ColStride: 1})
		}},
		{"B.Data = 9", func(p *product) { p.B.Pack(matmul.Matrix{Data: make([]float32, 9), Rows: 1, Cols: math.MaxInt/8 + 1}) }},
		{"B.Data = 99", func(p *product) {
			p.B.Pack(matmul.Matrix{Data: make([]float32, 99), Rows: 40, Cols: 60, RowStride: 1, ColStride: 1})
		}},
		{"C.Cols = 7", func(p *product) { p.B.Pack(matmul.Matrix{Rows: 0, Cols: math.MaxInt}) }},
	} {
		p := draw(r, shape{5, 7, 6}, 0)
		c.make(p)
		err := e.Run(t.Context(), &p.Args)
		var wrong *flashkit.ProblemError
		require.ErrorAs(t, err, &wrong, c.want)
		require.ErrorContains(t, err, "flashkit: "+c.want+":")
	}
	for name, err := range map[string]error{
		"dst = 2":        e.Apply(t.Context(), make([]float32, 2), make([]float32, 3), matmul.ReLU),
		"dx = 2":         e.ApplyGrad(t.Context(), make([]float32, 2), make([]float32, 3), make([]float32, 3), matmul.ReLU),
		"dy = 4":         e.ApplyGrad(t.Context(), make([]float32, 3), make([]float32, 3), make([]float32, 4), matmul.ReLU),
		"Activation = 9": e.Apply(t.Context(), nil, nil, 9),
	} {
		require.ErrorContains(t, err, name)
	}
}
