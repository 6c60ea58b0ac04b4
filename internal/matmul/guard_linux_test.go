package matmul_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	edges "github.com/flashkit-go/flashkit/internal/guarded"
	"github.com/flashkit-go/flashkit/internal/matmul"
)

// A guarded is memory for floats between two unmapped parts.
type guarded []float32

func newGuarded(t testing.TB, floats int) guarded {
	pieces, free, err := edges.Memory(1, 4*floats)
	require.NoError(t, err)
	t.Cleanup(free)
	return unsafe.Slice((*float32)(unsafe.Pointer(&pieces[0][0])), len(pieces[0])/4)
}

// place copies x to the end of the memory, or to its start.
func (g guarded) place(x []float32, end bool) []float32 {
	if x == nil {
		return nil
	}
	at := g[:len(x)]
	if end {
		at = g[len(g)-len(x):]
	}
	copy(at, x)
	return at[:len(at):len(at)]
}

// Operands are next to unmapped pages. The test would crash if a product accessed memory outside
// its operands.
func TestNothingOutsideIsTouched(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		r, e := seeded(t), matmul.New()
		defer e.Close()
		var memory [6]guarded
		for i := range memory {
			memory[i] = newGuarded(t, 1<<16)
		}
		trials := 400
		if testing.Short() {
			trials = 60
		}
		for i := range trials {
			s, form, end := shape{1 + r.IntN(40), 1 + r.IntN(110), 1 + r.IntN(230)}, uint(r.Uint32())%forms, i%2 == 0
			p := draw(r, s, form)
			for i, x := range []*[]float32{&p.A.Data, &p.b.Data, &p.C.Data, &p.Bias, &p.Before.Data, &p.Residual.Data} {
				*x = memory[i].place(*x, end)
			}
			p.B.Pack(p.b)
			run(t, e, p)
			p.check(t, s.String())
		}
		for n := range 100 {
			act := matmul.Activation(n % 5)
			x, y, z := memory[0][len(memory[0])-n:], memory[1][len(memory[1])-n:], memory[2][len(memory[2])-n:]
			require.NoError(t, e.Apply(t.Context(), x, y, act))
			require.NoError(t, e.ApplyGrad(t.Context(), x, y, z, act))
		}
	})
}
