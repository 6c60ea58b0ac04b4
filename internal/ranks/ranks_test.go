package ranks

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// Goroutines give one rank's results and report their times.
func TestOverGoroutines(t *testing.T) {
	p, err := flashkit.ParseProblem("b1-h2-g1-n24-m24-d8-f32-causal")
	require.NoError(t, err)
	var results []*Result
	var progress bytes.Buffer
	f := &Run{Link: "shared", Runs: 2, Backward: true, Check: true, Seed: 1, Progress: &progress, Print: func(r *Result) error {
		results = append(results, r)
		return nil
	}}
	d := dispatch.All(t.Context())
	defer d.Close()
	runners := []*dispatch.Dispatcher{d.Paired(), d.Paired(), d.Paired()}
	require.NoError(t, f.OverGoroutines(t.Context(), []Problem{{Problem: p}, {Problem: p}}, runners))
	require.Len(t, results, 2)
	for _, r := range results {
		require.Equal(t, 3, r.Ranks)
		require.Len(t, r.Sent, 3)
		require.Positive(t, r.Seconds)
		require.LessOrEqual(t, *r.Worst, 2e-5)
		var text bytes.Buffer
		require.NoError(t, r.WriteText(&text, f.Link))
		require.Contains(t, text.String(), "over the link shared")
	}
	require.Contains(t, progress.String(), "step 1 of ")
}
