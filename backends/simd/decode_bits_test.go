package simd_test

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// alone returns a call that has only sequence b of the sample, in separate memory, neither padded
// nor packed.
func (s *sample) alone(r *rand.Rand, b int) *sample {
	p, a := s.p, &s.args
	p.Batch, p.QLen, p.KVLen, p.Ragged, p.Page = 1, s.n[b], s.m[b], false, 0
	x := &sample{p: p, about: s.about, n: s.n[b : b+1], m: s.m[b : b+1]}
	rows := func(t *flashkit.Tensor, n int, at func(t *flashkit.Tensor, b, h, i int) int) flashkit.Tensor {
		shape := t.Shape()
		shape[0], shape[2] = 1, n
		y := x.newTensor(r, t.DType(), shape)
		each(y, func(pos [4]int, i int) { put(&y, i, get(t, at(t, b, pos[1], pos[2])+pos[3])) })
		return y
	}
	x.args.Q, x.args.O, x.args.LSE = rows(&a.Q, s.n[b], s.rowAt), rows(&a.O, s.n[b], s.rowAt), rows(&a.LSE, s.n[b], s.rowAt)
	if p.RowMax {
		x.args.RowMax = rows(&a.RowMax, s.n[b], s.rowAt)
	}
	if p.KeyMass {
		x.args.KeyMass = x.newTensor(r, flashkit.Float32, [4]int{1, p.Heads, 1, p.KVLen})
	}
	x.args.K, x.args.V = rows(&a.K, s.m[b], s.keyAt), rows(&a.V, s.m[b], s.keyAt)
	pairs := func(t *flashkit.Tensor) flashkit.Tensor {
		y := x.newTensor(r, t.DType(), [4]int{1, p.Heads, p.QLen, p.KVLen})
		each(y, func(pos [4]int, i int) {
			from := pairAt(t, b, pos[1], pos[2], pos[3])
			if t.DType() == flashkit.Bool {
				y.Bools()[i] = t.Bools()[from]
			} else {
				put(&y, i, get(t, from))
			}
		})
		return y
	}
	if p.Score.Bias {
		x.args.Bias = pairs(&a.Bias)
	}
	if p.Score.Mask {
		x.args.Mask = pairs(&a.Mask)
	}
	if t := &a.Ranges; p.Score.Ranges != 0 {
		x.args.Ranges = x.newTensor(r, flashkit.Int32, [4]int{1, p.Heads, p.QLen, 2 * p.Score.Ranges})
		each(x.args.Ranges, func(pos [4]int, i int) {
			x.args.Ranges.Int32s()[i] = min(t.Int32s()[pairAt(t, b, pos[1], pos[2], pos[3])], int32(p.KVLen))
		})
	}
	if p.Score.ALiBi {
		x.args.Slopes = x.newTensor(r, flashkit.Float32, [4]int{1, p.Heads, 1, 1})
		each(x.args.Slopes, func(pos [4]int, i int) {
			put(&x.args.Slopes, i, get(&a.Slopes, a.Slopes.Offset(b%a.Slopes.Shape()[0], pos[1], 0)))
		})
	}
	x.args.Sink, x.args.Seed, x.args.Origin = a.Sink, a.Seed, a.Origin
	if p.Score.Origin {
		x.args.Origin.Batch += b
	}
	return x
}

// A sequence gives the same bits alone and in any batch: padded to any length, packed or in pages,
// with any other sequences. The number of workers does not change the bits either.
func TestDecodeBitsOfSequences(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	compared := 0
	for i := range trials(t, 500, 500, 2000) {
		features := anyFeatures(r)&flashkit.Feature(r.Uint32()) | flashkit.FeatureRagged
		s := newSample(r, drawDecode(t, r, features, dtypes[i%3]))
		if s.p.Carry {
			s.startCarry(r)
		}
		b := r.IntN(s.p.Batch)
		if s.p.Score.Dropout != 0 && !s.p.Score.Origin {
			b = 0 // the dropped weights depend on the number of the sequence
		}
		one := s.alone(r, b)
		before := [2]flashkit.Tensor{one.copied(&one.args.O), one.copied(&one.args.LSE)}
		carried := [2]flashkit.Tensor{s.copied(&s.args.O), s.copied(&s.args.LSE)}
		forDecode(s.p, func(k flashkit.Kernel) {
			one.args.O, one.args.LSE = one.copied(&before[0]), one.copied(&before[1])
			s.args.O, s.args.LSE = s.copied(&carried[0]), s.copied(&carried[1])
			runtime.GOMAXPROCS(1 + r.IntN(4))
			require.NoError(t, k.Compute(t.Context(), s.p, &s.args), s.about)
			runtime.GOMAXPROCS(1 + r.IntN(4))
			require.NoError(t, k.Compute(t.Context(), one.p, &one.args), s.about)
			for name, pair := range map[string][2]*flashkit.Tensor{"o": {&one.args.O, &s.args.O}, "lse": {&one.args.LSE, &s.args.LSE}} {
				each(*pair[0], func(pos [4]int, at int) {
					compared++
					got, want := get(pair[1], s.rowAt(pair[1], b, pos[1], pos[2])+pos[3]), get(pair[0], at)
					if math.Float64bits(got) != math.Float64bits(want) {
						t.Fatalf("%s: %s%v of sequence %d is %g, alone %g: %s", k.Name, name, pos, b, got, want, s.about)
					}
				})
			}
		})
	}
	t.Logf("%d numbers", compared)
}

// An item of several short heads gives the bits of items of one head. A call with lengths of sequences
// has items of one head.
func TestDecodeShortHeads(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	bands := []flashkit.Band{{}, flashkit.Causal(), flashkit.Causal().TopLeft(), flashkit.Window(2, 1)}
	for i := range trials(t, 30, 300, 3000) {
		p := flashkit.Problem{Batch: 1 + r.IntN(5), KVHeads: 1 + r.IntN(9), QLen: 1 + r.IntN(5), KVLen: 1 + r.IntN(20), Dim: 1 + r.IntN(80), VDim: 1 + r.IntN(80)}
		p.Heads, p.DType, p.Band = p.KVHeads*(1+r.IntN(3)), dtypes[i%3], bands[r.IntN(len(bands))]
		if r.IntN(4) == 0 {
			p.KVLen = 1 + r.IntN(64)
		}
		s := newSample(r, p)
		if r.IntN(2) == 0 {
			at := s.args.V.Offset(0, p.KVHeads-1, p.KVLen-1)
			put(&s.args.V, at, math.NaN())
		}
		forDecode(p, func(k flashkit.Kernel) {
			want, a := *s, s.args
			want.args.O, want.args.LSE = s.copied(&a.O), s.copied(&a.LSE)
			want.p.Ragged = true
			want.args.Seqs = &flashkit.Sequences{KVLens: make([]int32, p.Batch)}
			for b := range p.Batch {
				want.args.Seqs.KVLens[b] = int32(p.KVLen)
			}
			require.NoError(t, k.Compute(t.Context(), want.p, &want.args), s.about)
			require.NoError(t, k.Compute(t.Context(), p, &a), s.about)
			for _, pair := range [2][2]*flashkit.Tensor{{&a.O, &want.args.O}, {&a.LSE, &want.args.LSE}} {
				each(*pair[0], func(pos [4]int, at int) {
					require.Equal(t, math.Float64bits(get(pair[1], pair[1].Offset(pos[0], pos[1], pos[2])+pos[3])), math.Float64bits(get(pair[0], at)), "%s %v: %s", k.Name, pos, s.about)
				})
			}
		})
	}
}
