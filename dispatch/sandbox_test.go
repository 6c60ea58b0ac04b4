package dispatch_test

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/backends/wasm"
	"github.com/flashkit-go/flashkit/dispatch"
)

// coded returns a fake backend of one forward kernel with a code.
func coded(ran *[]string, name string, cost time.Duration, code flashkit.Code, fits string, fails error) *fake {
	f := &fake{name: name, ran: ran}
	f.add("fwd_a", cost, fits, fails)
	f.kernels[0].Code = code
	return f
}

func TestSandboxYieldsToVectors(t *testing.T) {
	var ran []string
	guest := coded(&ran, "guest", 1, flashkit.CodeSandbox, "", nil)
	plain := coded(&ran, "plain", 2, flashkit.CodeOther, "", nil)
	vector := coded(&ran, "vector", 3, flashkit.CodeVector, "", nil)
	unfit := coded(&ran, "unfit", 3, flashkit.CodeVector, "too large", nil)
	broken := coded(&ran, "broken", 3, flashkit.CodeVector, "", errors.New("broken"))
	pick := func(d *dispatch.Dispatcher) string {
		k, err := d.Pick(problem, flashkit.PassForward)
		require.NoError(t, err)
		return k.Name
	}
	require.Equal(t, "guest/fwd_a", pick(dispatch.New(guest, plain)), "plain Go has no advantage")
	require.Equal(t, "guest/fwd_a", pick(dispatch.New(guest, unfit)))
	d := dispatch.New(guest, vector)
	require.Equal(t, "vector/fwd_a", pick(d))
	require.Equal(t, "plain/fwd_a", pick(dispatch.New(guest, plain, vector)), "the prediction decides among the others")
	verdicts, err := d.Explain(problem, flashkit.PassForward)
	require.NoError(t, err)
	require.Equal(t, "fits, but so does a vector kernel outside the sandbox", verdicts[0].Reason)
	for _, name := range []string{"guest", "guest/fwd_a"} {
		only, err := d.With(name)
		require.NoError(t, err)
		require.Equal(t, "guest/fwd_a", pick(only), "asked for by name")
		require.Equal(t, "vector/fwd_a", pick(d), "the copy changes nothing")
	}
	over := dispatch.New(guest, broken).WithFailover(func(dispatch.Failover) {})
	require.NoError(t, over.Forward(t.Context(), problem, forward()))
	require.Equal(t, []string{"broken/fwd_a", "guest/fwd_a"}, ran)
}

// Where the processor has vector instructions, no problem runs in the sandbox.
func TestNoSmallProblemRunsInTheSandbox(t *testing.T) {
	b := simd.New()
	w, err := wasm.New(t.Context())
	require.NoError(t, err)
	if !slices.ContainsFunc(b.Kernels(), func(k flashkit.Kernel) bool {
		return k.Code == flashkit.CodeVector && (k.Missing == nil || k.Missing() == "")
	}) {
		t.Skip("the processor has no vector instructions that a kernel uses")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, procs := range []int{1, 2} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
		d := dispatch.New(b, w)
		defer d.Close()
		for range 4000 {
			p := flashkit.Problem{Batch: 1 + r.IntN(64), KVHeads: 1 + r.IntN(4), QLen: 1 + r.IntN(16), KVLen: 1 + r.IntN(16), Dim: 8 << r.IntN(5), DType: flashkit.DType(r.IntN(3))}
			p.Heads, p.VDim, p.Score.Sink = p.KVHeads<<r.IntN(4), p.Dim, r.IntN(4) == 0
			if r.IntN(2) == 0 {
				p.Band = flashkit.Causal()
			}
			for _, s := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
				k, err := d.Pick(p, s)
				require.NoError(t, err)
				require.NotEqual(t, flashkit.CodeSandbox, k.Code, "%s of %s, GOMAXPROCS %d", k.Name, p, procs)
			}
		}
	}
}
