package matmul

import (
	"fmt"
	"math/bits"

	"github.com/flashkit-go/flashkit"
)

func problem(field string, value any, format string, args ...any) error {
	return &flashkit.ProblemError{Field: field, Value: fmt.Sprint(value), Reason: fmt.Sprintf(format, args...)}
}

// check returns nil, or a *flashkit.ProblemError that names the field at fault.
func (a *Args) check() error {
	if a.B == nil {
		return problem("B", "nil", "must be packed")
	}
	if a.B.err != nil {
		return a.B.err
	}
	m := a.C.Rows
	if err := a.C.checkOutput("C", m, a.B.n); err != nil {
		return err
	}
	if err := a.A.check("A", m, a.B.k); err != nil {
		return err
	}
	if a.Bias != nil && len(a.Bias) != a.B.n {
		return problem("Bias", len(a.Bias), "must have one element for each of the %d columns of B", a.B.n)
	}
	if a.Activation >= activations {
		return problem("Activation", uint8(a.Activation), "must be None, ReLU, GELU, GELUTanh or SiLU")
	}
	if a.Before.Data != nil {
		if err := a.Before.checkOutput("Before", m, a.B.n); err != nil {
			return err
		}
	}
	if a.Residual.Data != nil {
		if err := a.Residual.checkRows("Residual", m, a.B.n); err != nil {
			return err
		}
	}
	if a.Workers < 0 {
		return problem("Workers", a.Workers, "must be at least 1, or 0 for GOMAXPROCS")
	}
	return nil
}

// checkOutput does the work of checkRows, and also refuses overlapping rows.
func (m *Matrix) checkOutput(name string, rows, cols int) error {
	if err := m.checkRows(name, rows, cols); err != nil {
		return err
	}
	if m.Rows > 1 && m.RowStride < m.Cols {
		return problem(name+".RowStride", m.RowStride, "must be at least Cols = %d: rows must not overlap", m.Cols)
	}
	return nil
}

func (m *Matrix) checkRows(name string, rows, cols int) error {
	if m.Cols > 1 && m.ColStride != 1 {
		return problem(name+".ColStride", m.ColStride, "must be 1")
	}
	return m.check(name, rows, cols)
}

// check returns an error for a matrix of another shape, or one that reaches beyond its memory.
func (m *Matrix) check(name string, rows, cols int) error {
	switch {
	case m.Rows != rows || m.Rows < 0:
		return problem(name+".Rows", m.Rows, "must be %d", max(rows, 0))
	case m.Cols != cols || m.Cols < 0:
		return problem(name+".Cols", m.Cols, "must be %d", max(cols, 0))
	case m.RowStride < 0:
		return problem(name+".RowStride", m.RowStride, "must be at least 0")
	case m.ColStride < 0:
		return problem(name+".ColStride", m.ColStride, "must be at least 0")
	case rows == 0 || cols == 0:
		return nil
	}
	h0, l0 := bits.Mul64(uint64(rows-1), uint64(m.RowStride))
	h1, l1 := bits.Mul64(uint64(cols-1), uint64(m.ColStride))
	last, carry := bits.Add64(l0, l1, 0)
	if h0 != 0 || h1 != 0 || carry != 0 || last >= uint64(len(m.Data)) {
		return problem(name+".Data", len(m.Data), "has fewer elements than %d x %d with strides %d and %d reach", rows, cols, m.RowStride, m.ColStride)
	}
	return nil
}

func checkElements(name string, n, want int, act Activation) error {
	if n != want {
		return problem(name, n, "must have as many elements as x, %d", want)
	}
	if act >= activations {
		return problem("Activation", uint8(act), "must be None, ReLU, GELU, GELUTanh or SiLU")
	}
	return nil
}
