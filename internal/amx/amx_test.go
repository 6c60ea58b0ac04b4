package amx

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Nobody is allowed what is not there, and a second question has the first one's answer.
func TestAllowed(t *testing.T) {
	allowed := Allowed()
	require.Equal(t, allowed, Allowed())
	if !Has() {
		require.False(t, allowed)
	}
	if allowed {
		require.True(t, ask())
	}
}
