package simd_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/input"
)

// dequantized returns the products of int8 elements and their scales.
func dequantized(t, scale flashkit.Tensor, group int) flashkit.Tensor {
	s := t.Shape()
	x := flashkit.Zeros(flashkit.Float32, s[0], s[1], s[2], s[3])
	codes, scales := flashkit.ToF32(t), flashkit.ToF32(scale)
	for i, code := range codes {
		x.Float32s()[i] = code * scales[i/s[3]*scale.Shape()[3]+i%s[3]/group]
	}
	return x
}

// Every kernel gives for int8 keys nearly the results of fwd_generic for float32 keys.
func TestInt8KeysAreTheirProducts(t *testing.T) {
	r, pick := rand.New(rand.NewPCG(3, 4)), []int{1, 8, 16, 24, 32, 48, 64, 96, 128}
	var generic flashkit.Kernel
	kernels := simd.New().Kernels()
	for _, k := range kernels {
		if k.Name == "simd/fwd_generic" {
			generic = k
		}
	}
	trials, ran := 1000, map[string]int{}
	if testing.Short() {
		trials = 200
	}
	for range trials {
		p := flashkit.Problem{Batch: 1 + r.IntN(2), KVHeads: 1 + r.IntN(3), QLen: 1 + r.IntN(3), KVLen: 1 + r.IntN(400), Dim: pick[r.IntN(len(pick))]}
		p.Heads, p.VDim = p.KVHeads*(1+r.IntN(5)), p.Dim
		if r.IntN(3) == 0 {
			p.VDim = pick[r.IntN(len(pick))]
		}
		p.Int8Group = min([]int{32, 64, 1 << 20}[r.IntN(3)], max(p.Dim, p.VDim))
		p.Score.Mask, p.Score.Sink, p.Ragged = r.IntN(3) == 0, r.IntN(3) == 0, r.IntN(3) == 0
		if p.Ragged {
			p.Page = []int{0, 1, 7, 16, 64}[r.IntN(5)]
		}
		if r.IntN(3) == 0 {
			p.Band = flashkit.Window(r.IntN(90), 0)
		}
		args := input.Random(p, r.Uint64(), input.BHSD, false).WithOutputs(false)
		plain, same := p, args
		plain.Int8Group = 0
		same.K, same.V = dequantized(args.K, args.KScale, p.Int8Group), dequantized(args.V, args.VScale, p.Int8Group)
		same.KScale, same.VScale = flashkit.Tensor{}, flashkit.Tensor{}
		same.O = flashkit.Zeros(flashkit.Float32, p.Batch, p.Heads, p.QLen, p.VDim)
		require.NoError(t, generic.Compute(t.Context(), plain, &same))
		if r.IntN(2) == 0 { // f16 scales, to which the products do not change much
			args.KScale = input.Converted(args.KScale, flashkit.Float16)
		}
		for _, k := range kernels {
			if k.Fits(p.Ask(flashkit.PassForward)) != "" {
				continue
			}
			ran[k.Name]++
			require.NoError(t, k.Compute(t.Context(), p, &args), "%s %s", k.Name, p)
			bound := 1e-4
			if args.KScale.DType() == flashkit.Float16 {
				bound = 2e-2
			}
			require.InDeltaSlice(t, same.O.Float32s(), args.O.Float32s(), bound, "%s %s", k.Name, p)
		}
	}
	for name, n := range ran {
		require.True(t, strings.HasPrefix(name, "simd/") && n > 0)
	}
	require.Contains(t, ran, "simd/fwd_generic")
}
