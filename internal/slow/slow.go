// Package slow skips slow tests.
package slow

import (
	"os"
	"testing"
)

// UnderRace skips a test under the race detector with -short, where it takes minutes, unless
// FLASHKIT_SLOW=1. The test must have no concurrency that a faster test lacks.
func UnderRace(t testing.TB) {
	t.Helper()
	if SkipsUnderRace() {
		t.Skip("it is slow under the race detector: without -short or with FLASHKIT_SLOW=1 it runs")
	}
}

// SkipsUnderRace reports whether UnderRace skips, for tests with slow parts.
func SkipsUnderRace() bool {
	return Race && testing.Short() && os.Getenv("FLASHKIT_SLOW") != "1"
}
