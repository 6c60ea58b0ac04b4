//go:build (amd64 || arm64) && !purego

package simd

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// A tile has the same bits from attendTile as from the separate routines: with any number of rows,
// in any band, with a bias, with a mask of keys, and with values that are not finite.
func TestAttendTile(t *testing.T) {
	slow.UnderRace(t)
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		if isa.attendTile == nil {
			t.Skip("has no such routine")
		}
		separate, whole := *isa, 0
		separate.attendTile = nil
		for range trials(600) {
			p := drawShort(r, isa.lanes)
			args := shortArgs(r, p)
			if r.IntN(4) == 0 {
				v := args.V.Float32s()
				v[r.IntN(len(v))] = []float32{float32(math.NaN()), float32(math.Inf(1))}[r.IntN(2)]
			}
			want := *args
			want.O = flashkit.F32(make([]float32, args.O.Len()), p.Batch, p.Heads, p.QLen, p.VDim)
			want.LSE = flashkit.F32(make([]float32, args.LSE.Len()), p.Batch, p.Heads, p.QLen, 1)
			if isa.forwardOf(t, p, args) {
				whole++
			}
			require.False(t, separate.forwardOf(t, p, &want))
			same := func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b }
			require.True(t, slices.EqualFunc(want.O.Float32s(), args.O.Float32s(), same), "O of %v, bias %v", p, args.Bias.Shape())
			require.True(t, slices.EqualFunc(want.LSE.Float32s(), args.LSE.Float32s(), same), "LSE of %v, bias %v", p, args.Bias.Shape())
		}
		require.NotZero(t, whole)
	})
}

// drawShort draws a problem whose keys are often one block.
func drawShort(r *rand.Rand, lanes int) flashkit.Problem {
	p := flashkit.Problem{Batch: 1 + r.IntN(2), Heads: 2, KVHeads: 1 + r.IntN(2), QLen: 1 + r.IntN(70), KVLen: 1 + r.IntN(270), Dim: 1 + r.IntN(40), VDim: lanes + r.IntN(2*lanes)}
	p.Band = []flashkit.Band{{}, flashkit.Causal(), flashkit.Causal().TopLeft(), flashkit.Window(r.IntN(90), r.IntN(90))}[r.IntN(4)]
	p.Score.Bias, p.Score.Mask = r.IntN(2) == 0, r.IntN(4) == 0
	return p
}

// shortArgs returns the arguments of p. A bias is -Inf for some pairs. A mask hides some keys at the
// end.
func shortArgs(r *rand.Rand, p flashkit.Problem) *flashkit.Args {
	tensor := func(h, n, d int) flashkit.Tensor {
		return flashkit.F32(normals(r, p.Batch*h*n*d), p.Batch, h, n, d)
	}
	args := &flashkit.Args{Q: tensor(p.Heads, p.QLen, p.Dim), K: tensor(p.KVHeads, p.KVLen, p.Dim), V: tensor(p.KVHeads, p.KVLen, p.VDim),
		O: tensor(p.Heads, p.QLen, p.VDim), LSE: tensor(p.Heads, p.QLen, 1)}
	if p.Score.Bias {
		rows := []int{1, p.QLen}[r.IntN(2)]
		bias := normals(r, 2*rows*p.KVLen)
		for range r.IntN(3) * len(bias) / 2 {
			bias[r.IntN(len(bias))] = float32(math.Inf(-1))
		}
		args.Bias = flashkit.F32(bias, 1, 2, rows, p.KVLen)
	}
	if p.Score.Mask {
		mask, seen := make([]bool, p.KVLen), r.IntN(p.KVLen+1)
		for i := range mask[:seen] {
			mask[i] = true
		}
		args.Mask = flashkit.Bools(mask, 1, 1, 1, p.KVLen)
	}
	return args
}

// forwardOf computes a forward pass. It reports whether attendTile supports the call.
func (isa *laneRoutines) forwardOf(t *testing.T, p flashkit.Problem, args *flashkit.Args) (whole bool) {
	t.Helper()
	b := New()
	k := b.kernel("fwd_test", func() string { return "" }, refusesNothing, isa.planForward, isa.fwdTimes, func(ctx context.Context, j *job) {
		whole = isa.takesWhole(&j.plan)
		forward(isa.fwdItem)(ctx, j)
	})
	k.DTypes, k.Takes = []flashkit.DType{flashkit.Float32}, flashkit.AllFeatures
	b.pool.Wrap(&k)
	require.NoError(t, k.Compute(t.Context(), p, args))
	require.NoError(t, b.Close())
	return whole
}
