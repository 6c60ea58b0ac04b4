//go:build linux && !js

package simd_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// With features, too, forward kernels access no byte outside the tensors: neither of pages, packed
// sequences, masks nor biases. See TestNothingOutsideTensorsIsTouched.
func TestForwardTouchesNothingOutsideTensors(t *testing.T) {
	slow.UnderRace(t)
	const largest = 1 << 22
	memory := make([]guarded, len(flashkit.Arguments()))
	for i := range memory {
		memory[i] = newGuarded(t, largest)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	rounds := 100
	if testing.Short() {
		rounds = 25
	}
	for i := range rounds {
		p := drawProblem(t, r, anyFeatures(r), dtypes[i%3])
		p.QLen, p.KVLen = 1+r.IntN(100), 1+r.IntN(150)
		s := newSample(r, p)
		if p.Carry {
			s.startCarry(r)
		}
		for _, k := range forwards(&p) {
			if strings.Contains(k.Name, "decode") {
				continue
			}
			free, want := s.args, s.args
			want.O, want.LSE = s.copied(&free.O), s.copied(&free.LSE)
			require.NoError(t, k.Compute(t.Context(), p, &want), s.about)
			for _, atEnd := range []bool{true, false} {
				args := free
				for slot, a := range flashkit.Arguments() {
					if x := a.Of(&args); !x.IsZero() && a.Role(&p, k.Pass) != 0 {
						*x = guardedCopy(t, x, memory[slot], atEnd)
					}
				}
				require.NoError(t, k.Compute(t.Context(), p, &args), s.about)
				for _, pair := range [][2]*flashkit.Tensor{{&args.O, &want.O}, {&args.LSE, &want.LSE}} {
					for at := range pair[0].Len() {
						got, want := get(pair[0], at), get(pair[1], at)
						require.True(t, math.Float64bits(got) == math.Float64bits(want) || got != got && want != want, "%s: element %d is %g, not %g: %s", k.Name, at, got, want, s.about)
					}
				}
			}
		}
	}
}
