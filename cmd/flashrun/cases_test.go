package main

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// A kernel that fails is reported, and the others are measured.
func TestBenchFailure(t *testing.T) {
	b := &bench{results: &results{}}
	p, err := flashkit.ParseProblem("b1-h2-g2-n16-m16-d64-f32")
	require.NoError(t, err)
	k := flashkit.Kernel{Name: "x/fwd_y"}
	require.NoError(t, b.note(t.Context(), p, k, os.ErrInvalid))
	require.NoError(t, b.note(t.Context(), p, k, nil))
	require.Equal(t, []caseError{{p.String(), "forward", "x/fwd_y", "invalid argument"}}, b.results.Failures)
	require.ErrorContains(t, b.verdict(nil), "x/fwd_y on b1-h2-g2-n16-m16-d64-f32: invalid argument")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, b.note(ended, p, k, os.ErrInvalid), context.Canceled)
	require.Len(t, b.results.Failures, 1, "an interrupted call is no failure of the kernel")
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
