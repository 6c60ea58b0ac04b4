package matmul_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/matmul"
)

// seeded returns random numbers of a seed that the log names and FLASHKIT_SEED sets.
func seeded(t testing.TB) *rand.Rand {
	seed := rand.Uint64()
	if x, err := strconv.ParseUint(os.Getenv("FLASHKIT_SEED"), 10, 64); err == nil {
		seed = x
	}
	t.Logf("FLASHKIT_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// A product is a case: its operands, and what C, Before hold before.
type product struct {
	matmul.Args
	b   matmul.Matrix
	old matmul.Matrix // of C
}

// shape says what to draw.
type shape struct{ m, n, k int }

func (s shape) String() string { return fmt.Sprintf("m%d-n%d-k%d", s.m, s.n, s.k) }

// draw returns a product of random numbers with the features of the bits of form.
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
	p.Activation = matmul.Activation(form >> 9 & 3)
	p.B = new(matmul.Packed)
	p.B.Pack(p.b)
	return p
}

const forms = 1 << 11

// random returns a matrix of numbers of about 1, as a transpose and with gaps between rows
// if told.
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

// poison sets the elements of a matrix to NaN, and not what lies between them.
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

// check compares with float64. The bound is that of sums of K products in any order, and of
// two roundings for each of what follows, by as much as an activation may stretch it.
func (p *product) check(t testing.TB, msg string) {
	for i := range p.C.Rows {
		for j := range p.C.Cols {
			sum, size := 0.0, 0.0
			for k := range p.A.Cols {
				x := at(p.A, i, k) * at(p.b, k, j)
				sum, size = sum+x, size+math.Abs(x)
			}
			if p.Bias != nil {
				sum, size = sum+float64(p.Bias[j]), size+math.Abs(float64(p.Bias[j]))
			}
			bound := float64(p.A.Cols+2)*eps*size + 0x1p-120*float64(p.A.Cols+1)
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

func within(t testing.TB, want, got, bound float64, msg string, args ...any) {
	if !(math.Abs(want-got) <= bound) {
		require.Failf(t, "out of bound", msg+": %g, not %g within %g", append(args, got, want, bound)...)
	}
}

// activation is the reference, in float64.
func activation(act matmul.Activation, x float64) float64 {
	switch act {
	case matmul.ReLU:
		return max(x, 0)
	case matmul.GELU:
		return x * math.Erfc(-x/math.Sqrt2) / 2
	case matmul.GELUTanh:
		return x / (1 + math.Exp(-2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
	}
	return x
}

// activationBound is the error of an activation of an exact number.
func activationBound(act matmul.Activation, x float64) float64 {
	if act <= matmul.ReLU {
		return 0
	}
	return 4 * eps * max(math.Abs(x), 0x1p-100)
}

func run(t testing.TB, e *matmul.Engine, p *product) {
	require.NoError(t, e.Run(context.Background(), &p.Args))
}

// Every tail of M, N and K, and every form.
func TestAgainstFloat64(t *testing.T) {
	r, e := seeded(t), matmul.New()
	defer e.Close()
	for form := range uint(forms) {
		s := shape{r.IntN(20), r.IntN(120), r.IntN(40)}
		p := draw(r, s, form)
		run(t, e, p)
		p.check(t, fmt.Sprintf("%v form %d", s, form))
	}
	for _, s := range []shape{{1, 1, 1}, {200, 50, 500}, {3, 1000, 10}, {70, 5, 1000}, {8, 48, 193}, {129, 97, 385}} {
		p := draw(r, s, uint(r.Uint32()%forms))
		run(t, e, p)
		p.check(t, s.String())
	}
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
		{"A.Data = 30", func(p *product) { p.A.ColStride = 1 << 62 }},
		{"C.Rows = -1", func(p *product) { p.C.Rows, p.A.Rows = -1, -1 }},
		{"C.Cols = 6", func(p *product) { p.C.Cols = 6 }},
		{"C.ColStride = 2", func(p *product) { p.C.ColStride = 2 }},
		{"C.RowStride = 6", func(p *product) { p.C.RowStride = 6 }},
		{"C.Data = 34", func(p *product) { p.C.Data = p.C.Data[:34] }},
		{"Bias = 6", func(p *product) { p.Bias = make([]float32, 6) }},
		{"Activation = 4", func(p *product) { p.Activation = 4 }},
		{"Before.RowStride = 0", func(p *product) { p.Before = p.C; p.Before.RowStride = 0 }},
		{"Residual.Data = 1", func(p *product) { p.Residual = p.C; p.Residual.Data = p.C.Data[:1] }},
		{"Workers = -1", func(p *product) { p.Workers = -1 }},
		{"B.Data = 3", func(p *product) { p.B.Pack(matmul.Dense(make([]float32, 3), 6, 7)) }},
		{"B.Rows = -1", func(p *product) { p.B.Pack(matmul.Matrix{Rows: -1}) }},
		{"B.RowStride = 0", func(p *product) {
			p.B.Pack(matmul.Matrix{Data: make([]float32, 9), Rows: 1 << 60, Cols: 9, ColStride: 1})
		}},
		{"B.ColStride = 0", func(p *product) { p.B.Pack(matmul.Matrix{Data: make([]float32, 9), Rows: 1, Cols: 1 << 60}) }},
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
