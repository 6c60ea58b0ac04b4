package conformance

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
)

// fromOracle returns kernels of float32 that ask the oracle, for dense problems. The forward
// pass gives the LSE of row i times 1 plus off(i).
func fromOracle(variant string, off func(i int) float64) []flashkit.Kernel {
	kernel := func(name string, pass flashkit.Pass, run func(p flashkit.Problem, a *flashkit.Args)) flashkit.Kernel {
		return flashkit.Kernel{
			Name: "fake/" + name + "_" + variant, Pass: pass,
			Refuses: func(c *flashkit.Call) string {
				if c.DType != flashkit.Float32 {
					return "it is not float32"
				}
				return ""
			},
			Run: func(_ context.Context, c *flashkit.Call) error { run(c.Problem, c.Args); return nil },
		}
	}
	inputs := func(a *flashkit.Args) oracle.Inputs {
		return oracle.Inputs{Q: widen(a.Q.Float32s()), K: widen(a.K.Float32s()), V: widen(a.V.Float32s()), DO: widen(a.DO.Float32s())}
	}
	return []flashkit.Kernel{
		kernel("fwd", flashkit.PassForward, func(p flashkit.Problem, a *flashkit.Args) {
			o, lse := oracle.Forward(p, inputs(a))
			copy(a.O.Float32s(), narrow(o))
			for i := range lse {
				lse[i] *= 1 + off(i)
			}
			copy(a.LSE.Float32s(), narrow(lse))
		}),
		kernel("bwd", flashkit.PassBackward, func(p flashkit.Problem, a *flashkit.Args) {
			g := oracle.Backward(p, inputs(a))
			_, lse := oracle.Forward(p, inputs(a))
			copy(a.DQ.Float32s(), narrow(g.DQ))
			copy(a.DK.Float32s(), narrow(g.DK))
			for i, x := range a.LSE.Float32s() { // as far as the LSE that it is given lets it
				lse[i] -= float64(x)
			}
			for i := range g.DV {
				g.DV[i] *= 1 + lse[i%len(lse)]
			}
			copy(a.DV.Float32s(), narrow(g.DV))
		}),
	}
}

// A pair of two families that sum alike passes, and one whose forward pass rounds LSE
// elsewhere is told from it.
func TestMixedFamilies(t *testing.T) {
	exact := func(int) float64 { return 0 }
	far := func(i int) float64 { return float64(1-2*(i%2)) * 0x1p-18 }
	for name, off := range map[string]func(int) float64{"alike": exact, "far": far} {
		kernels := append(fromOracle("one", exact), fromOracle("other", off)...)
		kernels[3] = flashkit.Kernel{Name: "fake/bwd_none", Pass: flashkit.PassBackward} // of no family then
		kernelChecks := mixed(kernels[1], kernels)
		require.Len(t, kernelChecks, 1)
		require.Equal(t, "after_fwd_other", kernelChecks[0].name)
		err := kernelChecks[0].run(t.Context(), kernels[1])
		var miss *missed
		require.Equal(t, name == "far", errors.As(err, &miss), "%s: %v", name, err)
		require.Empty(t, mixed(kernels[0], kernels), "a forward kernel is asked nothing")
	}
}

// The list of pairs that miss is held both ways.
func TestMixedMisses(t *testing.T) {
	pair := pairOf{flashkit.Kernel{Name: "fake/fwd_one"}, flashkit.Kernel{Name: "fake/bwd_other"}}
	little, much, failed := &missed{2, "two bounds"}, &missed{9, "nine bounds"}, fmt.Errorf("failed")
	for _, c := range []struct {
		err          error
		listed       bool
		excused, bad bool
	}{
		{err: nil},
		{err: nil, listed: true, bad: true},
		{err: little, bad: true},
		{err: little, listed: true, excused: true},
		{err: much, listed: true, bad: true},
		{err: failed, listed: true, bad: true},
	} {
		err := pair.verdict(c.err, c.listed)
		require.Equal(t, c.excused || c.bad, err != nil, "%+v: %v", c, err)
		require.Equal(t, c.excused, errors.Is(err, errors.ErrUnsupported), "%+v: %v", c, err)
	}
	pair.forward.Name = "cuda/fwd_one"
	require.NoError(t, pair.verdict(nil, true), "a device that misses nothing")
	require.ErrorIs(t, pair.verdict(little, true), errors.ErrUnsupported)
	require.Equal(t, little, pair.verdict(little, false))
}
