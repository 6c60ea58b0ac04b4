package machine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Other programs' time is all processors' time minus this program's.
func TestLoad(t *testing.T) {
	const cpus = "cpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0 0 0\nintr 5 6 7\n"
	was := parseTicks("cpu  1000 20 300 9000 5 6 7 40 0 0\n"+cpus, "12 (a ) name) R 1 1 1 0 -1 0 0 0 0 0 100 50 0 0 20 0")
	require.Equal(t, ticks{busy: 1333, steal: 40, own: 150, cpus: 2}, was)
	is := was
	is.busy, is.own, is.steal = was.busy+3500, was.own+2000, was.steal+200
	require.Equal(t, &Load{Others: 1.5, Steal: .1, CPUs: 2}, loadBetween(was, is, 10*time.Second))
	is.own += 9000
	require.Zero(t, loadBetween(was, is, 10*time.Second).Others)
	require.Nil(t, loadBetween(was, is, time.Millisecond), "the counters are too coarse")
	for _, text := range []string{"", "cpu", "cpu  0 0 0 0 0 0 0 0 0 0\n" + cpus, "cpu x y z a b c d e f g\n"} {
		require.Nil(t, loadBetween(parseTicks(text, ""), parseTicks(text, ""), time.Minute), text)
	}
}
