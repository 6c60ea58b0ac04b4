package simd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// drawDecode draws a problem with few rows and with up to several chunks of keys. The last chunk
// may be short.
func drawDecode(t testing.TB, r *rand.Rand, features flashkit.Feature, dtype flashkit.DType) flashkit.Problem {
	p := drawProblem(t, r, features, dtype)
	rows, keys := []int{1, 1, 2, 3, 5}, []int{1, 4, 100, 128, 129, 300, 513, 1030}
	p.QLen, p.KVLen = rows[r.IntN(len(rows))], keys[r.IntN(len(keys))]
	switch r.IntN(4) {
	case 0:
		p.Dim, p.VDim = 64, 64 // chunks of fewer keys
	case 1:
		p.Dim, p.VDim = 16<<r.IntN(3), 16<<r.IntN(3)
	}
	if p.Dim > 20 {
		p.Scale = 0 // the default scale, so that scores are small enough for float32
	}
	if p.Band.Left() != flashkit.Unlimited {
		shift := p.Band.Shifted()
		p.Band = flashkit.Window(r.IntN(p.KVLen), r.IntN(3)).Shift(shift)
	}
	require.NoError(t, p.Validate())
	return p
}

// Decode kernels match the definition with each single feature and with many combinations of
// features.
func TestDecodeFeatures(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	rounds := 30
	if testing.Short() {
		rounds = 6
	}
	check := func(t *testing.T, features flashkit.Feature, i int) {
		s := newSample(r, drawDecode(t, r, features, dtypes[i%3]))
		if s.p.Carry {
			s.startCarry(r)
		}
		if s.p.Score.ALiBi { // over many keys, likewise
			scaleBy(s.args.Slopes, .1)
		}
		o, lse := s.expectForward()
		carried := []flashkit.Tensor{s.args.O, s.args.LSE}
		forDecode(s.p, func(k flashkit.Kernel) {
			about := fmt.Sprint(k.Name, " ", s.about)
			s.args.O, s.args.LSE = s.copied(&carried[0]), s.copied(&carried[1])
			if !s.p.Carry {
				fill(&s.args.O, math.NaN())
				fill(&s.args.LSE, math.NaN())
			}
			require.NoError(t, k.Compute(t.Context(), s.p, &s.args), about)
			precision := s.precise(digits)
			if strings.HasSuffix(k.Name, "fhm") || strings.HasSuffix(k.Name, "neonbf16") { // weights of 16 bits
				precision = max(precision, precisionOf(&k))
			}
			(&want{&s.args.O, o.list}).check(t, "o", about, precision)
			(&want{&s.args.LSE, lse.list}).check(t, "lse", about, s.precise(digits))
			s.checkAround(t)
		})
	}
	for bit := flashkit.Feature(1); bit < flashkit.AllFeatures; bit <<= 1 {
		t.Run(fmt.Sprint(bit), func(t *testing.T) {
			for i := range rounds {
				check(t, bit, i)
			}
		})
	}
	t.Run("mixed", func(t *testing.T) {
		for i := range 12 * rounds {
			check(t, anyFeatures(r)&flashkit.Feature(r.Uint32()), i)
		}
	})
}

// copied returns a copy of a tensor in separate memory, with the same shape and elements.
func (s *sample) copied(t *flashkit.Tensor) flashkit.Tensor {
	shape, st := t.Shape(), t.Strides()
	var x flashkit.Tensor
	switch t.DType() {
	case flashkit.Float32:
		x = flashkit.F32(guarding[float32](s, t.Len()), shape[0], shape[1], shape[2], shape[3])
	case flashkit.Float16:
		x = flashkit.F16(guarding[uint16](s, t.Len()), shape[0], shape[1], shape[2], shape[3])
	case flashkit.BFloat16:
		x = flashkit.BF16(guarding[uint16](s, t.Len()), shape[0], shape[1], shape[2], shape[3])
	}
	copy(x.Float32s(), t.Float32s())
	copy(x.Uint16s(), t.Uint16s())
	return x.WithStrides(st[0], st[1], st[2])
}
