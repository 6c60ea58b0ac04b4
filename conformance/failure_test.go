package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The line that runs a test again works in the module of the test.
func TestRerun(t *testing.T) {
	o := Options{Seed: 7, Sweep: 4}
	t.Run("fwd_x/b1.5", func(t *testing.T) {
		const command = `go test -run '^TestRerun$/^fwd_x$/^b1\.5$' github.com/flashkit-go/flashkit/conformance`
		require.Equal(t, command, o.rerun(t, Result{Case: "b1.5"}))
		require.Equal(t, "FLASHKIT_SEED=7 FLASHKIT_SWEEP=4 "+command, o.rerun(t, Result{Case: "sweep-tiny-00"}))
	})
}

func TestMisses(t *testing.T) {
	out := &placed{dense: [4]int{2, 3, 5, 7}}
	var m misses
	for _, row := range []int{1, 1, 4, 5, 16, 16, 29} {
		m.add(row)
	}
	require.Equal(t, "7 of 210 elements are wrong, in 5 of 30 rows: [0,0,1] [0,0,4] [0,1,0] [1,0,1] ...", m.of(out))
}
