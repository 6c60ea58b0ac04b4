package dispatch_test

import (
	"os"
	"testing"
)

// Tests neither read nor write this machine's profile.
func TestMain(m *testing.M) {
	os.Setenv("FLASHKIT_PROFILE", "off")
	os.Exit(m.Run())
}
