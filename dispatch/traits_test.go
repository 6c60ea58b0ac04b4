package dispatch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// Calls of one problem with different tensors have different plans: kernels accept or favor certain
// traits.
func TestPlansAreOfTraits(t *testing.T) {
	p := flashkit.Problem{Batch: 2, Heads: 1, KVHeads: 1, QLen: 40, KVLen: 40, Dim: 1, VDim: 1, Ragged: true}
	packed := []int32{0, 40, 80}
	calls := map[string]struct {
		seqs   flashkit.Sequences
		traits flashkit.Traits
	}{
		"full":    {flashkit.Sequences{}, flashkit.Traits{}},
		"queries": {flashkit.Sequences{QStarts: packed}, flashkit.Traits{PackedQ: true}},
		"keys":    {flashkit.Sequences{KVStarts: packed}, flashkit.Traits{PackedKV: true}},
		"short":   {flashkit.Sequences{KVLens: []int32{5, 5}}, flashkit.Traits{Load: 12}},
	}
	args := func(s flashkit.Sequences) *flashkit.Args {
		a := &flashkit.Args{Seqs: &s}
		side := func(starts []int32) flashkit.Tensor {
			if starts != nil {
				return flashkit.F32(make([]float32, 80), 1, 1, 80, 1)
			}
			return flashkit.F32(make([]float32, 80), 2, 1, 40, 1)
		}
		a.Q, a.O, a.K, a.V = side(s.QStarts), side(s.QStarts), side(s.KVStarts), side(s.KVStarts)
		return a
	}
	for first := range calls {
		for second := range calls {
			t.Run(fmt.Sprintf("%s/%s", first, second), func(t *testing.T) {
				var ran []string
				f := &fake{name: "x", ran: &ran}
				for name, x := range calls {
					f.add("fwd_"+name, 1, "", nil)
					k := &f.kernels[len(f.kernels)-1]
					k.Takes = flashkit.FeatureRagged
					k.Refuses = func(c *flashkit.Call) string {
						if c.Traits.PackedQ != x.traits.PackedQ || c.Traits.PackedKV != x.traits.PackedKV {
							return "not this layout"
						}
						return ""
					}
					k.Cost = func(c *flashkit.Call) time.Duration {
						if c.Traits.Load != x.traits.Load {
							return time.Second
						}
						return time.Microsecond
					}
				}
				d := dispatch.New(f).Frozen()
				for _, name := range []string{first, second, first} {
					require.NoError(t, d.Forward(t.Context(), p, args(calls[name].seqs)))
				}
				require.Equal(t, []string{"x/fwd_" + first, "x/fwd_" + second, "x/fwd_" + first}, ran)
			})
		}
	}
}

// Backends returns a dispatcher's original backends, regardless of its choice.
func TestBackends(t *testing.T) {
	var ran []string
	fast, slow := twoBackends(&ran)
	d, err := dispatch.New(slow, fast).With("fast")
	require.NoError(t, err)
	require.Equal(t, []flashkit.Backend{slow, fast}, d.Backends())
}
