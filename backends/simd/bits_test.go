package simd_test

import (
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// O, LSE and the gradients of a sequence have the same bits alone and in any batch. The sequences
// of a batch may be padded to any length, packed, or in pages in any order. The number of workers
// does not change the bits either. The test runs every kernel that supports sequences of different
// lengths.
func TestBitsOfSequences(t *testing.T) {
	slow.UnderRace(t)
	seed, trials := rand.Uint64(), trials(t, 100, 600, 2000)
	if x, err := strconv.ParseUint(os.Getenv("FLASHKIT_SEED"), 10, 64); err == nil {
		seed = x
	}
	t.Logf("FLASHKIT_SEED=%d", seed)
	withProcs(t, 7)
	var kernels []flashkit.Kernel
	for _, k := range simd.New().Kernels() {
		if k.Takes&flashkit.FeatureRagged != 0 && (k.Missing == nil || k.Missing() == "") {
			kernels = append(kernels, k)
		}
	}
	for i, k := range kernels {
		t.Run(k.Name, func(t *testing.T) {
			r, compared := rand.New(rand.NewPCG(seed, uint64(i))), 0
			for range trials / len(kernels) {
				compared += compareBits(t, r, k, drawRagged(t, r, k))
			}
			t.Logf("%d numbers", compared)
			require.NotZero(t, compared)
		})
	}
}

// drawRagged draws a problem that a kernel supports, with sequences of different lengths. Half of
// the problems have other features, too. Some lengths exceed a tile, a block or a run.
func drawRagged(t testing.TB, r *rand.Rand, k flashkit.Kernel) (p flashkit.Problem) {
	lengths := []int{1, 2, 31, 33, 64, 65, 130, 257, 300, 513}
	for {
		features := k.Takes & flashkit.FeaturePage & flashkit.Feature(r.Uint32())
		if r.IntN(2) == 0 {
			features = k.Takes & flashkit.Feature(r.Uint32()&r.Uint32())
		}
		features |= flashkit.FeatureRagged
		dtype := k.DTypes[r.IntN(len(k.DTypes))]
		if k.MaxRows > 0 {
			p = drawDecode(t, r, features, dtype)
		} else {
			p = drawProblem(t, r, features, dtype)
			p.QLen, p.KVLen = lengths[r.IntN(len(lengths))], lengths[r.IntN(len(lengths))]
		}
		if r.IntN(12) == 0 { // long runs, chains and chunks
			p.QLen, p.KVLen = 1+r.IntN(20), 1000+r.IntN(5000)
			if k.Pass == flashkit.PassBackward && r.IntN(2) == 0 {
				p.QLen, p.KVLen = p.KVLen, p.QLen
			}
		}
		if p.Batch = 1 + r.IntN(4); p.QLen*p.KVLen > 130*130 {
			p.Heads, p.KVHeads = 2, 1+r.IntN(2)
		}
		if k.Fits(p.Ask(k.Pass)) == "" {
			return p
		}
	}
}

// compareBits runs a kernel on a batch, and on one sequence of the batch alone. It compares the
// results and returns the number of elements that it compared.
func compareBits(t *testing.T, r *rand.Rand, k flashkit.Kernel, p flashkit.Problem) (compared int) {
	s, b := newSample(r, p), r.IntN(p.Batch)
	if p.Score.Dropout != 0 && !p.Score.Origin {
		b = 0 // the dropped weights depend on the number of the sequence
	}
	if p.Carry {
		s.startCarry(r)
	}
	if k.Pass == flashkit.PassBackward { // it reads O and LSE
		forward := kernel(t, "simd/fwd_generic")
		require.NoError(t, forward.Compute(t.Context(), p, &s.args), s.about)
	}
	one := s.alone(r, b)
	outputs := []string{"O", "LSE"}
	if k.Pass == flashkit.PassBackward {
		s.gradientsAlone(r, one, b)
		outputs = []string{"DQ", "DK", "DV"}
	}
	for _, x := range [...]*sample{s, one} {
		for _, out := range outputsOf(x, k.Pass) {
			if !p.Carry {
				fill(out, math.NaN())
			}
		}
		x.args.Workers = []int{1, 2, 3, 7}[r.IntN(4)]
		require.NoError(t, k.Compute(t.Context(), x.p, &x.args), x.about)
	}
	for _, a := range flashkit.Arguments() {
		at := s.rowAt
		switch a.Name {
		case outputs[0], outputs[1], outputs[len(outputs)-1]:
		default:
			continue
		}
		if a.Name == "DK" || a.Name == "DV" {
			at = s.keyAt
		}
		x, y := a.Of(&s.args), a.Of(&one.args)
		each(*y, func(pos [4]int, i int) {
			compared++
			got, want := get(x, at(x, b, pos[1], pos[2])+pos[3]), get(y, i)
			if math.Float64bits(got) != math.Float64bits(want) {
				t.Fatalf("%s: %s%v of sequence %d is %g, alone %g, with %d and %d workers: %s",
					k.Name, a.Name, pos, b, got, want, s.args.Workers, one.args.Workers, s.about)
			}
		})
	}
	return compared
}

// gradientsAlone sets the remaining inputs and outputs of the backward pass in one, the call of
// sequence b alone. Its bias repeats over the same dimensions as the bias of the batch, because
// gradients of a repeated bias may be summed in another order.
func (s *sample) gradientsAlone(r *rand.Rand, one *sample, b int) {
	of := func(t *flashkit.Tensor, n int, at func(t *flashkit.Tensor, b, h, i int) int) (x flashkit.Tensor) {
		if t.IsZero() {
			return x
		}
		shape := t.Shape()
		shape[0], shape[2] = 1, n
		x = one.newTensor(r, t.DType(), shape)
		each(x, func(pos [4]int, i int) { put(&x, i, get(t, at(t, b, pos[1], pos[2])+pos[3])) })
		return x
	}
	a, to := &s.args, &one.args
	to.DO, to.DLSE, to.DQ = of(&a.DO, s.n[b], s.rowAt), of(&a.DLSE, s.n[b], s.rowAt), of(&a.DQ, s.n[b], s.rowAt)
	to.DK, to.DV = of(&a.DK, s.m[b], s.keyAt), of(&a.DV, s.m[b], s.keyAt)
	if shape := a.Bias.Shape(); !a.Bias.IsZero() {
		to.Bias = one.newTensor(r, a.Bias.DType(), [4]int{1, shape[1], min(shape[2], s.n[b]), s.m[b]})
		each(to.Bias, func(pos [4]int, i int) { put(&to.Bias, i, get(&a.Bias, pairAt(&a.Bias, b, pos[1], pos[2], pos[3]))) })
	}
}
