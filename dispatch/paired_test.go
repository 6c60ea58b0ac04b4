package dispatch_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/allocs"
)

// summing sets the order of sums of a backend's last kernel.
func summing(f *fake, scores string) *fake {
	f.kernels[len(f.kernels)-1].Scores = scores
	return f
}

func orders(ran *[]string) (f *fake) {
	f = &fake{name: "x", ran: ran}
	summing(f.add("decode_a", 1, "", nil), "tree")
	summing(f.add("fwd_a", 4, "", nil), "line")
	summing(f.add("fwd_b", 3, "", nil), "line")
	summing(f.add("bwd_a", 9, "", nil), "line")
	return summing(f.add("bwd_b", 20, "", nil), "tree")
}

// The kernels of a training step have the shortest sum of times, not each the shortest time.
func TestPairIsTheFastestTogether(t *testing.T) {
	var ran []string
	step := func(decode, backward time.Duration) [2]string {
		f := &fake{name: "x", ran: &ran}
		summing(f.add("fwd_a", 4, "", nil), "line")
		summing(f.add("decode_b", decode, "", nil), "tree")
		summing(f.add("bwd_a", 10, "", nil), "line")
		summing(f.add("bwd_b", backward, "", nil), "tree")
		return names(dispatch.New(f).Paired())
	}
	require.Equal(t, [2]string{"x/decode_b", "x/bwd_b"}, step(5, 6))
	require.Equal(t, [2]string{"x/fwd_a", "x/bwd_a"}, step(9, 6), "the backward pass alone would be faster")
	require.Equal(t, [2]string{"x/decode_b", "x/bwd_b"}, step(1, 11), "the backward pass alone is slower")
}

func TestPairedTakesTheOrderOfTheBackwardPass(t *testing.T) {
	var ran []string
	d := dispatch.New(orders(&ran))
	require.Equal(t, [2]string{"x/decode_a", "x/bwd_a"}, names(d))
	require.Equal(t, [2]string{"x/fwd_b", "x/bwd_a"}, names(d.Paired()))
	require.Equal(t, [2]string{"x/decode_a", "x/bwd_a"}, names(d), "Paired must not change its receiver")
	require.NoError(t, d.Paired().Forward(t.Context(), problem, forward()))
	require.NoError(t, d.Forward(t.Context(), problem, forward()))
	require.Equal(t, []string{"x/fwd_b", "x/decode_a"}, ran)

	verdicts, err := d.Paired().Explain(problem, flashkit.PassForward)
	require.NoError(t, err)
	require.Equal(t, "fits, but sums scores in another order than the backward pass", verdicts[0].Reason)
	require.True(t, verdicts[2].Chosen)
}

func TestPairedYields(t *testing.T) {
	var ran []string
	d := dispatch.New(orders(&ran)).Paired()
	only, err := d.With("x/decode_a")
	require.NoError(t, err)
	require.Equal(t, "x/decode_a", names(only)[0], "a choice")

	carry := problem
	carry.Carry = true
	f := orders(&ran)
	for i := range f.kernels {
		f.kernels[i].Takes = flashkit.FeatureCarry
	}
	k, err := dispatch.New(f).Paired().Pick(carry, flashkit.PassForward)
	require.NoError(t, err)
	require.Equal(t, "x/decode_a", k.Name, "no backward pass")

	alone := &fake{name: "y", ran: &ran}
	summing(alone.add("fwd_a", 1, "", nil), "tree").add("bwd_a", 1, "", nil)
	summing(alone, "line")
	require.Equal(t, "y/fwd_a", names(dispatch.New(alone).Paired())[0], "no kernel in the order")
	alone.kernels[1].Scores = ""
	require.Equal(t, "y/fwd_a", names(dispatch.New(alone).Paired())[0], "a backward kernel that says nothing")
}

func TestPairedFailsOverToAnyOrder(t *testing.T) {
	var ran []string
	f := &fake{name: "x", ran: &ran}
	summing(f.add("decode_a", 1, "", nil), "tree")
	summing(f.add("fwd_a", 4, "", errors.New("broken")), "line")
	summing(f.add("bwd_a", 9, "", nil), "line")
	d := dispatch.New(f).Paired().WithFailover(func(dispatch.Failover) {})
	require.NoError(t, d.Forward(t.Context(), problem, forward()))
	require.Equal(t, []string{"x/fwd_a", "x/decode_a"}, ran)
}

// On any machine, a training step of one query row runs on two kernels with one order of sums.
func TestPairedKernelsOfTheCPU(t *testing.T) {
	b := simd.New()
	defer b.Close()
	d := dispatch.New(b).Paired()
	for _, name := range []string{"b1-h8-g2-n1-m300-d64-f32", "b2-h4-g4-n3-m5-d8-f32-softcap30-alibi", "b1-h4-g4-n64-m64-d64-bf16-causal", "b1-h1-g1-n1-m1-d1-f16"} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		fwd, err := d.Pick(p, flashkit.PassForward)
		require.NoError(t, err)
		bwd, err := d.Pick(p, flashkit.PassBackward)
		require.NoError(t, err)
		require.NotEmpty(t, bwd.Scores)
		require.Equal(t, bwd.Scores, fwd.Scores, "%s: %s and %s", name, fwd.Name, bwd.Name)
		args := flashkit.NewArgs(p, flashkit.PassForward)
		require.NoError(t, d.Forward(t.Context(), p, args))
		require.Zero(t, allocs.PerRun(20, func() { _ = d.Forward(t.Context(), p, args) }), name)
	}
}

// A forward pass with LSE runs before a backward pass, unless the caller denies it.
func TestForwardWithLSEIsPaired(t *testing.T) {
	var ran []string
	d := dispatch.New(orders(&ran))
	with := forward()
	with.LSE = flashkit.F32(make([]float32, 1), 1, 1, 1, 1)
	call := func(d *dispatch.Dispatcher, args *flashkit.Args) string {
		ran = nil
		require.NoError(t, d.Forward(t.Context(), problem, args))
		return ran[0]
	}
	for range 2 { // the second call uses the cached plan
		require.Equal(t, "x/fwd_b", call(d, with))
		require.Equal(t, "x/decode_a", call(d, forward()), "decoding keeps its speed")
		require.Equal(t, "x/decode_a", call(d.Unpaired(), with))
		require.Equal(t, "x/fwd_b", call(d.Paired(), forward()))
		require.Equal(t, "x/fwd_b", call(d.Unpaired().Paired(), with), "the last one counts")
		require.Equal(t, "x/fwd_b", call(d.Frozen(), with))
		require.Equal(t, "x/decode_a", call(d.Unpaired().Frozen(), with))
	}
	require.Equal(t, "x/decode_a", names(d)[0], "Pick sees no LSE")
	require.Equal(t, "x/fwd_b", names(d.Paired())[0])
	for name, x := range map[string]*dispatch.Dispatcher{"x/fwd_b": d, "x/decode_a": d.Unpaired()} {
		k, err := x.PickWithLSE(problem)
		require.NoError(t, err)
		require.Equal(t, name, k.Name)
	}
	_, err := d.PickWithLSE(flashkit.Problem{})
	require.Error(t, err)
	only, err := d.With("x/decode_a")
	require.NoError(t, err)
	require.Equal(t, "x/decode_a", call(only, with), "a choice")
}
