package cuda_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/dispatch"
)

// A shared prefix gives, on a device, the results of one call over all keys.
func TestForwardPrefixOnFake(t *testing.T) {
	list, _ := cuda.OpenFakes(t, 1)
	prefixes(t, list[0], 10)
}

func TestForwardPrefixOnDevice(t *testing.T) {
	b, err := cuda.Open()
	if err != nil {
		conformance.Unavailable(t, "cuda", err)
	}
	defer b.Close()
	prefixes(t, b, 100)
}

func prefixes(t *testing.T, b *cuda.Backend, problems int) {
	d := dispatch.New(b).Frozen()
	s, err := b.NewStream()
	require.NoError(t, err)
	defer s.Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range problems {
		g := 1 + r.IntN(3)
		p := flashkit.Problem{Batch: 1 + r.IntN(5), Heads: g * (1 + r.IntN(4)), KVHeads: g, QLen: 1 + r.IntN(2), KVLen: 3 + r.IntN(70), Dim: 8 * (1 + r.IntN(9)), VDim: 8 * (1 + r.IntN(9)), DType: flashkit.DType(r.IntN(3))}
		if p.Score.Sink = r.IntN(2) == 0; r.IntN(2) == 0 {
			p.Band = flashkit.Causal()
		}
		compare(t, d, b, s, r, p, 1+r.IntN(200))
	}
	p := flashkit.Problem{Batch: 2, Heads: 1, KVHeads: 1, QLen: 2, KVLen: 4, Dim: 8, VDim: 8}
	args, m := flashkit.NewArgs(p, flashkit.PassForward), upload(t, b, s, 1<<10)
	args.Q, args.K, args.V = m.Tensor(0, 0, 2, 1, 2, 8).WithStrides(40, 16, 8), m.Tensor(0, 100, 2, 1, 4, 8), m.Tensor(0, 200, 2, 1, 4, 8)
	args.O, args.LSE = m.Tensor(0, 300, 2, 1, 2, 8), m.Tensor(0, 400, 2, 1, 2, 1)
	prefix := &dispatch.Prefix{K: m.Tensor(0, 500, 1, 1, 4, 8), V: m.Tensor(0, 600, 1, 1, 4, 8)}
	require.ErrorContains(t, d.ForwardPrefix(t.Context(), p, prefix, args), "rows of all sequences with one stride")
	args.Q, args.LSE = m.Tensor(0, 0, 2, 1, 2, 8), flashkit.Tensor{}
	require.ErrorContains(t, d.ForwardPrefix(t.Context(), p, prefix, args), "needs LSE")
	require.NoError(t, m.Free())
}

func upload(t *testing.T, b *cuda.Backend, s *cuda.Stream, bytes int) *cuda.Buffer {
	m, err := b.Alloc(bytes * 4)
	require.NoError(t, err)
	require.NoError(t, cuda.Upload(s, m, 0, make([]float32, bytes)))
	return m
}

// compare compares a call with a prefix with a call over all keys. Both have the same keys, in
// tensors whose first rows are the prefix, and which broadcast them.
func compare(t *testing.T, d *dispatch.Dispatcher, b *cuda.Backend, s *cuda.Stream, r *rand.Rand, p flashkit.Problem, shared int) {
	var buffers []*cuda.Buffer
	tensor := func(x flashkit.Tensor) flashkit.Tensor {
		m, err := b.Alloc(max(1, x.Len()*x.DType().Size()))
		require.NoError(t, err)
		buffers = append(buffers, m)
		require.NoError(t, cuda.UploadTensor(s, m, x))
		n, at := x.Shape(), x.Strides()
		return m.Tensor(x.DType(), 0, n[0], n[1], n[2], n[3]).WithStrides(at[0], at[1], at[2])
	}
	random := func(dtype flashkit.DType, n [4]int) flashkit.Tensor {
		x := flashkit.Zeros(flashkit.Float32, n[0], n[1], n[2], n[3])
		for i := range x.Float32s() {
			x.Float32s()[i] = float32(r.NormFloat64())
		}
		if dtype == flashkit.Float16 {
			return flashkit.F16(flashkit.ToF16(x.Float32s()), n[0], n[1], n[2], n[3])
		} else if dtype == flashkit.BFloat16 {
			return flashkit.BF16(flashkit.ToBF16(x.Float32s()), n[0], n[1], n[2], n[3])
		}
		return x
	}
	whole := p
	whole.KVLen += shared
	k, v := random(p.DType, whole.KShape()), random(p.DType, whole.VShape())
	for _, x := range []flashkit.Tensor{k, v} {
		for e := range p.Batch {
			for g := range p.KVHeads {
				from, to, n := x.Offset(0, g, 0), x.Offset(e, g, 0), shared*x.Shape()[3]
				if x.DType() == flashkit.Float32 {
					copy(x.Float32s()[to:][:n], x.Float32s()[from:])
				} else {
					copy(x.Uint16s()[to:][:n], x.Uint16s()[from:])
				}
			}
		}
	}
	args := flashkit.NewArgs(p, flashkit.PassForward)
	args.Q, args.K, args.V = tensor(random(p.DType, p.QShape()).AsBSHD()), tensor(k), tensor(v)
	args.O, args.LSE = tensor(args.O.AsBSHD()), tensor(args.LSE.AsBSHD())
	if p.Score.Sink {
		args.Sink = tensor(random(flashkit.Float32, [4]int{1, p.Heads, 1, 1}))
	}
	all := *args
	all.O, all.LSE = tensor(flashkit.Zeros(p.DType, p.Batch, p.Heads, p.QLen, p.VDim).AsBSHD()), tensor(flashkit.Zeros(flashkit.Float32, p.Batch, p.Heads, p.QLen, 1).AsBSHD())
	part := func(x flashkit.Tensor, batch, first, rows int) flashkit.Tensor {
		n, at, m := x.Shape(), x.Strides(), x.Owner().(*cuda.Buffer)
		return m.Tensor(x.DType(), first*at[2], batch, n[1], rows, n[3]).WithStrides(at[0], at[1], at[2])
	}
	prefix := &dispatch.Prefix{K: part(args.K, 1, 0, shared), V: part(args.V, 1, 0, shared)}
	args.K, args.V = part(args.K, p.Batch, shared, p.KVLen), part(args.V, p.Batch, shared, p.KVLen)
	if r.IntN(2) == 0 {
		require.NoError(t, d.ForwardPrefix(t.Context(), p, prefix, args), "%v after %d keys", p, shared)
	} else {
		require.NoError(t, dispatch.RunPrefix(p, prefix, args, func(p flashkit.Problem, args *flashkit.Args) error {
			return b.Launch(t.Context(), s, p, flashkit.PassForward, args, cuda.Options{Unpaired: true})
		}), "%v after %d keys, in a stream", p, shared)
	}
	require.NoError(t, d.Forward(t.Context(), whole, &all), whole)
	tolerance := map[flashkit.DType]float64{flashkit.Float32: 1e-5, flashkit.Float16: 4e-3, flashkit.BFloat16: 3e-2}[p.DType]
	for _, pair := range [][2]flashkit.Tensor{{args.O, all.O}, {args.LSE, all.LSE}} {
		n := pair[0].Shape()
		x, y := flashkit.Zeros(pair[0].DType(), n[0], n[1], n[2], n[3]), flashkit.Zeros(pair[0].DType(), n[0], n[1], n[2], n[3])
		require.NoError(t, cuda.DownloadTensor(s, x, pair[0].Owner().(*cuda.Buffer)))
		require.NoError(t, cuda.DownloadTensor(s, y, pair[1].Owner().(*cuda.Buffer)))
		require.InDeltaSlice(t, flashkit.ToF32(y), flashkit.ToF32(x), tolerance, "%v after %d keys", p, shared)
	}
	for _, m := range buffers {
		require.NoError(t, m.Free())
	}
}
