package simd_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// eachFewKeys runs f for each kernel for few keys that this machine supports.
func eachFewKeys(t *testing.T, f func(t *testing.T, k flashkit.Kernel, r *rand.Rand)) {
	seed := rand.Uint64()
	for _, k := range simd.New().Kernels() {
		if strings.Contains(k.Name, "fewkeys") && k.Missing() == "" {
			t.Run(k.Name, func(t *testing.T) {
				t.Logf("seed %d", seed)
				f(t, k, rand.New(rand.NewPCG(seed, 0)))
			})
		}
	}
}

// drawFewKeys draws a problem whose KV heads have one or several chunks of query rows.
func drawFewKeys(r *rand.Rand) flashkit.Problem {
	g := 1 + r.IntN(2)
	p := flashkit.Problem{
		Batch: 2, KVHeads: g, Heads: g * (1 + r.IntN(4)), QLen: 1 + r.IntN(900), KVLen: 1 + r.IntN(1+r.IntN(128)),
		Dim: 1 + r.IntN(90), VDim: 1 + r.IntN(90), DType: flashkit.DType(r.IntN(3)),
	}
	switch r.IntN(4) {
	case 0:
		p.Band = flashkit.Causal()
	case 1:
		p.Band = flashkit.Causal().TopLeft()
	case 2:
		p.Band = flashkit.Window(r.IntN(50), r.IntN(50)).Shift(r.IntN(500))
	}
	return p
}

// A sequence has the same bits alone, in a batch, and for any number of workers, in every layout.
func TestBitsOfFewKeys(t *testing.T) {
	slow.UnderRace(t)
	withProcs(t, 5)
	eachFewKeys(t, func(t *testing.T, k flashkit.Kernel, r *rand.Rand) {
		for range 15 {
			p := drawFewKeys(r)
			all := newOperands(p, heap, bhsd)
			all.run(t, k)
			one := p
			one.Batch = 1
			for b := range p.Batch {
				alone := newOperands(one, heap, []layout{bhsd, bshd, gaps}[r.IntN(3)])
				for to, from := range map[*flashkit.Tensor]flashkit.Tensor{
					&alone.bwd.Q: all.bwd.Q, &alone.bwd.K: all.bwd.K, &alone.bwd.V: all.bwd.V, &alone.bwd.DO: all.bwd.DO, &alone.bwd.DLSE: all.bwd.DLSE,
				} {
					all, n := values(from), len(values(from))/p.Batch
					i := b * n
					change(*to, func([4]int, float32) float32 { i++; return all[i-1] })
				}
				alone.bwd.Workers = 1
				alone.run(t, k)
				whole := all.outputs(k)
				for name, got := range alone.outputs(k) {
					sameBits(t, got, whole[name][b*len(got):][:len(got)], 1, everywhere, "%s, sequence %d, %s", p, b, name)
				}
			}
		}
	})
}

// NaN in a row of Q or dO reaches dK and dV of the keys that the row sees, and no other key.
func TestNaNOfFewKeys(t *testing.T) {
	slow.UnderRace(t)
	eachFewKeys(t, func(t *testing.T, k flashkit.Kernel, r *rand.Rand) {
		for range 30 {
			p := drawFewKeys(r)
			a := newOperands(p, heap, bhsd)
			a.run(t, k)
			want := a.outputs(k)
			row, head, args := r.IntN(p.QLen), r.IntN(p.Heads), a.bwd
			x := []*flashkit.Tensor{&args.Q, &args.DO}[r.IntN(2)]
			change(*x, func(at [4]int, old float32) float32 {
				if at[1] == head && at[2] == row {
					return float32(math.NaN())
				}
				return old
			})
			require.NoError(t, k.Compute(t.Context(), p, &args))
			seq := p.Ask(flashkit.PassBackward).Seq(0)
			lo, hi := seq.Keys(row)
			group := p.Heads / p.KVHeads
			for name, got := range a.outputs(k) {
				n, dim := p.KVLen, map[string]int{"dq": p.Dim, "dk": p.Dim, "dv": p.VDim}[name]
				hit := func(i int) bool { return i/n%p.KVHeads == head/group && lo <= i%n && i%n < hi }
				if name == "dq" {
					n = p.QLen
					hit = func(i int) bool { return i/n%p.Heads == head && i%n == row }
				}
				sameBits(t, got, want[name], dim, func(i int) bool { return !hit(i) }, "%s, NaN in row %d of head %d, %s", p, row, head, name)
			}
		}
	})
}
