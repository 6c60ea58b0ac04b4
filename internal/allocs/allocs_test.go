package allocs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/slow"
)

var sink []byte

func TestPerRun(t *testing.T) {
	require.Zero(t, PerRun(10, func() {}))
	want := 2.0
	if slow.Race {
		want = 0
	}
	require.Equal(t, want, PerRun(10, func() {
		for range 2 {
			sink = make([]byte, 100)
		}
	}))
}

// Allocations of others, here in the first calls, do not count.
func TestPerRunBesideOthers(t *testing.T) {
	calls, others := 0, 3*11 // a measurement makes 10 calls and one before
	require.Zero(t, PerRun(10, func() {
		if calls++; calls <= others {
			sink = make([]byte, 100)
		}
	}))
}
