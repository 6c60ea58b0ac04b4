package matmul_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/matmul"
)

// An engine packs the same words with any number of goroutines, also into memory that held another
// matrix.
func TestPackByWorkers(t *testing.T) {
	matmul.EachISA(t, func(t *testing.T) {
		r := seeded(t)
		e := matmul.New()
		defer e.Close()
		for _, s := range []shape{{0, 1, 1}, {0, 48, 64}, {0, 49, 65}, {0, 7, 500}, {0, 500, 7}, {0, 300, 200 + r.IntN(300)}, {0, 0, 5}, {0, 5, 0}} {
			for form := range 4 * int(matmul.Precisions) {
				b := random(r, s.k, s.n, form&1 != 0, form&2 != 0)
				var want, got matmul.Packed
				want.Precision = matmul.Precision(form / 4)
				want.Pack(b)
				for most := range 4 {
					if testing.Short() && want.Precision != matmul.Float32 && most != 2 {
						continue
					}
					got.Precision = want.Precision
					got.Pack(random(r, s.k+17, s.n+40, false, false))
					for i := range got.Memory() {
						got.Memory()[i] = float32(math.NaN())
					}
					e.Pack(&got, b, most)
					require.Equal(t, bitsOf(want.Memory()), bitsOf(got.Memory()), "%v, form %d, workers %d", s, form, most)
					k, n := got.Dims()
					require.Equal(t, [2]int{s.k, s.n}, [2]int{k, n})
				}
			}
		}
	})
}

func TestPackByWorkersOfWhatIsWrong(t *testing.T) {
	e := matmul.New()
	defer e.Close()
	var p matmul.Packed
	e.Pack(&p, matmul.Dense(make([]float32, 11), 3, 4), 0)
	err := e.Run(context.Background(), &matmul.Args{C: matmul.Dense(make([]float32, 8), 2, 4), A: matmul.Dense(make([]float32, 6), 2, 3), B: &p})
	require.ErrorContains(t, err, "B.Data")
}

func TestPackByWorkersAllocatesNothing(t *testing.T) {
	r := seeded(t)
	e := matmul.New()
	defer e.Close()
	var p matmul.Packed
	b := random(r, 300, 300, false, true)
	for range 3 {
		e.Pack(&p, b, 0)
	}
	require.Zero(t, allocs.PerRun(20, func() { e.Pack(&p, b, 0) }))
}
