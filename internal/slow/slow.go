// Package slow skips tests that are slow under the race detector.
package slow

import (
	"os"
	"testing"
)

// UnderRace skips a test that takes minutes under the race detector. It skips the test only with
// -short, and only if the race detector is on and FLASHKIT_SLOW is not 1. All concurrency of the
// test must also occur in a faster test.
func UnderRace(t testing.TB) {
	t.Helper()
	if SkipsUnderRace() {
		t.Skip("it is slow under the race detector: without -short or with FLASHKIT_SLOW=1 it runs")
	}
}

// SkipsUnderRace reports whether UnderRace skips tests. A test with a slow part calls it to skip this
// part.
func SkipsUnderRace() bool {
	return Race && testing.Short() && os.Getenv("FLASHKIT_SLOW") != "1"
}
