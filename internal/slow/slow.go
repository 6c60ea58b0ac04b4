// Package slow has what tests say when they are slow.
package slow

import (
	"os"
	"testing"
)

// UnderRace skips a test that takes minutes under the race detector there, if tests are short
// (-short). With FLASHKIT_SLOW=1 it runs. A test that says so has no concurrency that a
// faster one lacks.
func UnderRace(t testing.TB) {
	t.Helper()
	if SkipsUnderRace() {
		t.Skip("it is slow under the race detector: without -short or with FLASHKIT_SLOW=1 it runs")
	}
}

// SkipsUnderRace reports whether UnderRace skips, for a test that has slow parts.
func SkipsUnderRace() bool {
	return Race && testing.Short() && os.Getenv("FLASHKIT_SLOW") != "1"
}
