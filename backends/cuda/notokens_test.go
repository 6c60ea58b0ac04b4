package cuda

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// Packed tensors without a token have no tensor map.
func TestPackedWithoutTokens(t *testing.T) {
	b, _ := openFake(t)
	b.eager = true
	none, rows, keys := []int32{0, 0, 0}, []int32{0, 1, 4}, []int32{0, 5, 12}
	for _, k := range b.Kernels() {
		for _, dtype := range k.DTypes {
			for _, seqs := range []flashkit.Sequences{{QStarts: none, KVStarts: keys}, {QStarts: rows, KVStarts: none}, {QStarts: none, KVStarts: none}} {
				p := flashkit.Problem{DType: dtype, Batch: 2, Heads: 4, KVHeads: 2, QLen: 3, KVLen: 7, Dim: 64, VDim: 64, Ragged: true}
				if reason := k.Fits(p.Ask(k.Pass)); reason != "" {
					continue // fwd_sm90_short and others that take no sequences
				}
				args := withoutTokens(&p, k.Pass, &seqs)
				require.NoError(t, k.Compute(t.Context(), p, args), k.Name)
				if k.Pass == flashkit.PassForward {
					requireAll(t, 0, args.O, k.Name)
					requireAll(t, float32(math.Inf(-1)), args.LSE, k.Name)
					continue
				}
				for _, x := range []flashkit.Tensor{args.DQ, args.DK, args.DV} {
					requireAll(t, 0, x, k.Name)
				}
			}
		}
	}
}

// withoutTokens returns the arguments of a packed call, all tensors full of NaN.
func withoutTokens(p *flashkit.Problem, pass flashkit.Pass, seqs *flashkit.Sequences) *flashkit.Args {
	args := &flashkit.Args{Seqs: seqs}
	for _, a := range flashkit.Arguments() {
		if a.Role(p, pass) == 0 {
			continue
		}
		starts := seqs.QStarts
		switch a.Name {
		case "K", "V", "DK", "DV":
			starts = seqs.KVStarts
		}
		x := flashkit.Zeros(a.DType(p), 1, a.Shape(p)[1], int(starts[p.Batch]), a.Shape(p)[3])
		if x.DType() == flashkit.Float32 {
			for i := range x.Float32s() {
				x.Float32s()[i] = float32(math.NaN())
			}
		} else {
			for i := range x.Uint16s() {
				x.Uint16s()[i] = 0x7fff
			}
		}
		*a.Of(args) = x
	}
	return args
}

func requireAll(t *testing.T, want float32, x flashkit.Tensor, kernel string) {
	t.Helper()
	if x.DType() == flashkit.Float32 {
		for _, v := range x.Float32s() {
			require.Equal(t, want, v, kernel)
		}
		return
	}
	for _, v := range x.Uint16s() { // of either 16-bit type; only zero is asked for
		require.Zero(t, v, kernel)
	}
}
