package dispatch_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/allocs"
)

// A fake backend has kernels that only record their calls.
type fake struct {
	name    string
	kernels []flashkit.Kernel
	ran     *[]string
	closed  bool
}

func (f *fake) Name() string               { return f.name }
func (f *fake) Kernels() []flashkit.Kernel { return f.kernels }
func (f *fake) Close() error               { f.closed = true; return nil }

// add adds a kernel with a cost, a reason not to fit, and the error of its calls.
func (f *fake) add(stem string, cost time.Duration, reason string, end error) *fake {
	name := f.name + "/" + stem
	k := flashkit.Kernel{
		Name:    name,
		Refuses: func(*flashkit.Call) string { return reason },
		Cost:    func(*flashkit.Call) time.Duration { return cost },
		Run:     func(context.Context, *flashkit.Call) error { *f.ran = append(*f.ran, name); return end },
	}
	if stem[:3] == "bwd" {
		k.Pass = flashkit.PassBackward
	}
	f.kernels = append(f.kernels, k)
	return f
}

var problem = flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 1, Dim: 1, VDim: 1}

func forward() *flashkit.Args {
	x := func() flashkit.Tensor { return flashkit.F32(make([]float32, 1), 1, 1, 1, 1) }
	return &flashkit.Args{Q: x(), K: x(), V: x(), O: x()}
}

// names returns the kernel that d picks for each pass, "" for none.
func names(d *dispatch.Dispatcher) [2]string {
	fwd, _ := d.Pick(problem, flashkit.PassForward)
	bwd, _ := d.Pick(problem, flashkit.PassBackward)
	return [2]string{fwd.Name, bwd.Name}
}

func twoBackends(ran *[]string) (*fake, *fake) {
	fast := (&fake{name: "fast", ran: ran}).add("fwd_a", 3, "", nil).add("fwd_b", 1, "takes bf16 only", nil).add("bwd_a", 9, "", nil)
	slow := (&fake{name: "slow", ran: ran}).add("fwd_a", 5, "", nil).add("bwd_a", 5, "", nil).add("decode_a", 4, "", nil)
	return fast, slow
}

func TestPickTheFastestThatFits(t *testing.T) {
	var ran []string
	fast, slow := twoBackends(&ran)
	d := dispatch.New(slow, fast)
	require.Equal(t, [2]string{"fast/fwd_a", "slow/bwd_a"}, names(d))
	require.NoError(t, d.Forward(t.Context(), problem, forward()))
	require.Equal(t, []string{"fast/fwd_a"}, ran)
	require.NoError(t, d.Close())
	require.True(t, fast.closed && slow.closed)
}

func TestEqualCostsGoToTheEarlierBackend(t *testing.T) {
	var ran []string
	a := (&fake{name: "a", ran: &ran}).add("fwd_x", 1, "", nil)
	b := (&fake{name: "b", ran: &ran}).add("fwd_x", 1, "", nil)
	require.Equal(t, "a/fwd_x", names(dispatch.New(a, b))[0])
	require.Equal(t, "b/fwd_x", names(dispatch.New(b, a))[0])
}

func TestChoices(t *testing.T) {
	var ran []string
	fast, slow := twoBackends(&ran)
	all := dispatch.New(fast, slow)
	for choice, want := range map[string][2]string{
		"auto":          {"fast/fwd_a", "slow/bwd_a"},
		"":              {"fast/fwd_a", "slow/bwd_a"},
		"slow":          {"slow/decode_a", "slow/bwd_a"},
		"fast":          {"fast/fwd_a", "fast/bwd_a"},
		"slow/fwd_a":    {"slow/fwd_a", "slow/bwd_a"},
		"slow/decode_a": {"slow/decode_a", "slow/bwd_a"},
		"fast/bwd_a":    {"fast/fwd_a", "fast/bwd_a"},
		"fast/fwd_b":    {"", ""}, // it does not fit, and there is no bwd_b
	} {
		d, err := all.With(choice)
		require.NoError(t, err, choice)
		require.Equal(t, want, names(d), choice)
	}
	for _, unknown := range []string{"gpu", "slow/", "slow/fwd_z", "/", "auto/x", "SLOW"} {
		_, err := all.With(unknown)
		var wrong *flashkit.ProblemError
		require.ErrorAs(t, err, &wrong, unknown)
		require.Equal(t, "backend", wrong.Field)
	}
	require.Equal(t, [2]string{"fast/fwd_a", "slow/bwd_a"}, names(all), "With must not change its receiver")
}

// A kernel that the machine cannot run is refused on request, not at run time.
func TestChoiceOfAMissingKernel(t *testing.T) {
	var ran []string
	f := (&fake{name: "x", ran: &ran}).add("fwd_a", 1, "no AVX-512", nil).add("fwd_b", 2, "", nil)
	f.kernels[0].Missing = func() string { return "no AVX-512" }
	d := dispatch.New(f)
	_, err := d.With("x/fwd_a")
	require.ErrorIs(t, err, flashkit.ErrUnavailable)
	require.ErrorContains(t, err, "x/fwd_a")
	require.ErrorContains(t, err, "no AVX-512")
	for _, other := range []string{"x", "x/fwd_b"} {
		_, err := d.With(other)
		require.NoError(t, err)
	}
	for _, k := range simd.New().Kernels() {
		_, err := dispatch.New(simd.New()).With(k.Name)
		if k.Missing == nil || k.Missing() == "" {
			require.NoError(t, err, k.Name)
		} else {
			require.ErrorIs(t, err, flashkit.ErrUnavailable, k.Name)
			require.Equal(t, k.Missing(), k.Fits(problem.Ask(k.Pass)), "the machine comes first")
		}
	}
}

func TestNothingFits(t *testing.T) {
	var ran []string
	d := dispatch.New((&fake{name: "x", ran: &ran}).add("fwd_a", 1, "no AVX-512", nil).add("fwd_b", 1, "too long", nil))
	_, err := d.Pick(problem, flashkit.PassForward)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "no AVX-512")
	require.ErrorContains(t, err, "too long")
	_, err = d.Pick(problem, flashkit.PassBackward)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "backward")
	_, err = dispatch.New().Pick(problem, flashkit.PassForward)
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// An incomplete kernel is left out, or predicts 0.
func TestIncompleteKernel(t *testing.T) {
	var ran []string
	f := (&fake{name: "x", ran: &ran}).add("fwd_a", 1, "", nil).add("fwd_b", 1, "", nil)
	f.kernels[0].Run, f.kernels[1].Cost = nil, nil
	d := dispatch.New(f)
	require.Equal(t, "x/fwd_b", names(d)[0])
	for range 3 {
		require.NoError(t, d.Forward(t.Context(), problem, forward()))
	}
	verdicts, err := d.Explain(problem, flashkit.PassForward)
	require.NoError(t, err)
	require.Contains(t, verdicts[0].Reason, "has no Run")
	require.Zero(t, verdicts[1].Cost)
}

func TestInvalidProblem(t *testing.T) {
	d := dispatch.New(simd.New())
	bad := problem
	bad.Dim = 0
	var wrong *flashkit.ProblemError
	_, err := d.Pick(bad, flashkit.PassForward)
	require.ErrorAs(t, err, &wrong)
	_, err = d.Explain(bad, flashkit.PassForward)
	require.ErrorAs(t, err, &wrong)
	require.ErrorAs(t, d.Forward(t.Context(), bad, forward()), &wrong)
	require.ErrorAs(t, d.Backward(t.Context(), problem, nil), &wrong)

	_, err = d.Pick(problem, 2)
	require.ErrorAs(t, err, &wrong)
	_, err = d.Explain(problem, 255)
	require.ErrorAs(t, err, &wrong)
	require.ErrorAs(t, d.Probe(t.Context(), problem, 2), &wrong)
	for _, k := range d.Kernels() {
		k.Cost(problem.Ask(7))
	}
}

func TestExplain(t *testing.T) {
	var ran []string
	fast, slow := twoBackends(&ran)
	verdicts, err := dispatch.New(fast, slow).Explain(problem, flashkit.PassForward)
	require.NoError(t, err)
	require.Equal(t, []dispatch.Verdict{
		{Name: "fast/fwd_a", Chosen: true, Reason: "predicts the shortest time", Cost: 3, Own: 3, Factor: 1, From: dispatch.FromCost},
		{Name: "fast/fwd_b", Reason: "takes bf16 only"},
		{Name: "slow/fwd_a", Reason: "fits, but predicts a longer time", Cost: 5, Own: 5, Factor: 1, From: dispatch.FromCost},
		{Name: "slow/decode_a", Reason: "fits, but predicts a longer time", Cost: 4, Own: 4, Factor: 1, From: dispatch.FromCost},
	}, verdicts)

	forced, err := dispatch.New(fast, slow).With("slow")
	require.NoError(t, err)
	verdicts, err = forced.Explain(problem, flashkit.PassForward)
	require.NoError(t, err)
	require.Equal(t, "fits, but slow was requested", verdicts[0].Reason)
	require.Equal(t, dispatch.Verdict{Name: "slow/decode_a", Chosen: true, Reason: "slow was requested", Cost: 4, Own: 4, Factor: 1, From: dispatch.FromCost}, verdicts[3])
}

func TestFailover(t *testing.T) {
	var ran []string
	broken := errors.New("device lost")
	bad := (&fake{name: "bad", ran: &ran}).add("fwd_a", 1, "", broken).add("fwd_b", 2, "", broken)
	good := (&fake{name: "good", ran: &ran}).add("fwd_a", 3, "", nil)
	d := dispatch.New(bad, good)

	require.ErrorIs(t, d.Forward(t.Context(), problem, forward()), broken, "off by default")
	require.Equal(t, []string{"bad/fwd_a"}, ran)

	ran = nil
	var reports []dispatch.Failover
	over := d.WithFailover(func(f dispatch.Failover) { reports = append(reports, f) })
	require.NoError(t, over.Forward(t.Context(), problem, forward()))
	require.Equal(t, []string{"bad/fwd_a", "bad/fwd_b", "good/fwd_a"}, ran)
	require.Len(t, reports, 2)
	require.Equal(t, "bad/fwd_b", reports[1].Failed)
	require.Equal(t, "good/fwd_a", reports[1].Next)
	require.ErrorIs(t, reports[1].Err, broken)

	forced, err := over.With("bad/fwd_a")
	require.NoError(t, err)
	ran = nil
	require.ErrorIs(t, forced.Forward(t.Context(), problem, forward()), broken, "an explicit choice never falls back")
	require.Equal(t, []string{"bad/fwd_a"}, ran)

	carry := problem
	carry.Carry = true
	for _, b := range []*fake{bad, good} {
		for i := range b.kernels {
			b.kernels[i].Takes = flashkit.FeatureCarry
		}
	}
	ran = nil
	over = dispatch.New(bad, good).WithFailover(func(dispatch.Failover) {})
	require.ErrorIs(t, over.Forward(t.Context(), carry, flashkit.NewArgs(carry, flashkit.PassForward)), broken, "the inputs may be gone")
	require.Equal(t, []string{"bad/fwd_a"}, ran)

	ran = nil
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, over.Forward(canceled, problem, forward()), context.Canceled)
	require.Empty(t, ran)

	require.ErrorIs(t, dispatch.New(bad).WithFailover(func(dispatch.Failover) {}).Forward(t.Context(), problem, forward()), broken,
		"with nobody left, all failures come back")
}

func TestDefault(t *testing.T) {
	t.Setenv("FLASHKIT_BACKEND", "")
	d, err := dispatch.Default(t.Context())
	require.NoError(t, err)
	require.Contains(t, names(d)[0], "simd/")
	require.NotEmpty(t, names(d)[1])
	require.NoError(t, d.Close())

	t.Setenv("FLASHKIT_BACKEND", "simd/fwd_generic")
	d, err = dispatch.Default(t.Context())
	require.NoError(t, err)
	require.Equal(t, [2]string{"simd/fwd_generic", "simd/bwd_generic"}, names(d))
	require.NoError(t, d.Close())

	t.Setenv("FLASHKIT_DEVICE", "4096")
	d, err = dispatch.Default(t.Context())
	require.NoError(t, err, "nobody asks for a GPU")
	require.NoError(t, d.Close())
	t.Setenv("FLASHKIT_BACKEND", "")
	_, err = dispatch.Default(t.Context())
	require.ErrorIs(t, err, flashkit.ErrUnavailable)
	require.ErrorContains(t, err, "FLASHKIT_DEVICE=4096: cuda: ")

	t.Setenv("FLASHKIT_BACKEND", "nonsense")
	_, err = dispatch.Default(t.Context())
	var wrong *flashkit.ProblemError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, "nonsense", wrong.Value)
}

// Requesting an unavailable backend by name is an error, never a silent replacement.
func TestMissingBackends(t *testing.T) {
	d := dispatch.All(t.Context())
	defer d.Close()
	verdicts, err := d.Explain(problem, flashkit.PassForward)
	require.NoError(t, err)
	for _, m := range d.Missing() {
		require.ErrorIs(t, m.Err, flashkit.ErrUnavailable)
		_, err := d.With(m.Backend)
		require.ErrorIs(t, err, flashkit.ErrUnavailable)
		require.ErrorContains(t, err, m.Backend)
		require.Contains(t, verdicts, dispatch.Verdict{Name: m.Backend, Reason: m.Err.Error()[len(m.Backend)+2:]})
	}
}

func TestNoAllocationBesidesTheKernel(t *testing.T) {
	var ran []string
	quiet := &fake{name: "quiet", ran: &ran}
	quiet.add("fwd_a", 1, "", nil)
	quiet.kernels[0].Run = func(context.Context, *flashkit.Call) error { return nil }
	d, f, ctx := dispatch.New(quiet), forward(), t.Context()
	require.Zero(t, allocs.PerRun(100, func() {
		if err := d.Forward(ctx, problem, f); err != nil {
			t.Error(err)
		}
	}))
}
