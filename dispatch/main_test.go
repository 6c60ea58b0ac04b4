package dispatch_test

import (
	"os"
	"testing"
)

// Tests know nothing of this machine, and leave its profile alone.
func TestMain(m *testing.M) {
	os.Setenv("FLASHKIT_PROFILE", "off")
	os.Exit(m.Run())
}
