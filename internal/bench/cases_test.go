package bench

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// A kernel that fails is reported, and the others are measured.
func TestBenchFailure(t *testing.T) {
	b := &Run{Results: &Results{}}
	p, err := flashkit.ParseProblem("b1-h2-g2-n16-m16-d64-f32")
	require.NoError(t, err)
	k := flashkit.Kernel{Name: "x/fwd_y"}
	require.NoError(t, b.note(t.Context(), p, k, os.ErrInvalid))
	require.NoError(t, b.note(t.Context(), p, k, nil))
	require.Equal(t, []CaseError{{p.String(), "forward", "x/fwd_y", "invalid argument"}}, b.Results.Failures)
	require.ErrorContains(t, b.Verdict(nil), "x/fwd_y on b1-h2-g2-n16-m16-d64-f32: invalid argument")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, b.note(ended, p, k, os.ErrInvalid), context.Canceled)
	require.Len(t, b.Results.Failures, 1, "an interrupted call is no failure of the kernel")
}

func TestPlan(t *testing.T) {
	l := plan{started: time.Now()}
	l.add(time.Minute, 3)
	l.add(time.Minute, 1)
	require.Equal(t, 4, l.cases)
	require.Equal(t, 2*time.Minute, l.left(), "nothing is known yet")
	l.started = time.Now().Add(-2 * time.Minute)
	l.spend(time.Minute)
	require.InDelta(t, 2*time.Minute, l.left(), float64(time.Second), "half of it took twice as long as planned")
	l.spend(time.Hour)
	require.Equal(t, 1.0, l.share())
	require.Zero(t, l.left())
}

// Inputs and measurements do not teach dispatch: predictions and marked choices are of a dispatcher
// without calls.
func TestBenchTeachesNothing(t *testing.T) {
	problems, err := ParseProblems([]string{"b1-h2-g2-n16-m16-d64-f32", "b1-h2-g1-n40-m40-d32-bf16-causal"})
	require.NoError(t, err)
	how := Settings{Kernels: "all", Rounds: 8, TimePerCase: .001, Seed: 1}
	b := New(how, []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward}, []string{machine.Host}, false)
	require.NoError(t, b.Open(t.Context(), "all"))
	defer b.Close()
	b.show = terminal.NewProgress(&bytes.Buffer{})
	defer b.show.Done()
	called := 0
	b.inputs.Frozen = b.inputs.Frozen.WithObserver(func(dispatch.Ran) { called++ })
	fresh := b.Dispatch.Frozen()
	for range 3 {
		require.NoError(t, b.run(t.Context(), problems))
	}
	require.Positive(t, called, "O and LSE of the backward pass")
	for _, p := range problems {
		for i, k := range b.Dispatch.Kernels() {
			if k.Fits(p.Ask(k.Pass)) == "" {
				require.Equal(t, fresh.Kernels()[i].Cost(p.Ask(k.Pass)), k.Cost(p.Ask(k.Pass)), "%s on %s", k.Name, p)
			}
		}
	}
	for _, x := range b.Results.Results {
		p, err := flashkit.ParseProblem(x.Problem)
		require.NoError(t, err)
		pass := flashkit.PassForward
		if x.Pass == "backward" {
			pass = flashkit.PassBackward
		}
		k, err := fresh.Pick(p, pass)
		require.NoError(t, err)
		require.Equal(t, x.Kernel == k.Name, x.Chosen, "%s on %s", x.Kernel, p)
	}
}
