package conformance_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/conformance"
)

// The random problems of a budget come after all other cases, and follow from the seed.
func TestBudget(t *testing.T) {
	b := newMutant(t, "")
	drawn := func(o conformance.Options) (names []string) {
		o.Budget = 100 * time.Millisecond
		for r := range conformance.Results(t.Context(), b.Kernels(), o) {
			swept := strings.HasPrefix(r.Case, "sweep-")
			require.False(t, !swept && len(names) > 0, "%s after a random problem", r.Case)
			if swept {
				require.True(t, r.Err == nil || r.Unsupported(), "%s: %v", r.Case, r.Err)
				names = append(names, r.Kernel+" "+r.Case)
			}
		}
		return names
	}
	one, other := drawn(conformance.Options{Case: "sweep*", Seed: 1}), drawn(conformance.Options{Case: "sweep*", Seed: 1})
	require.NotEmpty(t, one)
	n := min(len(one), len(other))
	require.Equal(t, one[:n], other[:n])
	require.NotEqual(t, one[0], drawn(conformance.Options{Case: "sweep*", Seed: 2})[0])
	require.Empty(t, drawn(conformance.Options{Case: "gqa_2"}))
	begun := time.Now()
	for range conformance.Results(t.Context(), b.Kernels(), conformance.Options{Kernel: "none", Budget: time.Hour}) {
		t.Error("no kernel was asked for")
	}
	require.Less(t, time.Since(begun), time.Hour)
}
