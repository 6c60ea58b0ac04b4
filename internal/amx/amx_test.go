package amx

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Allowed implies Has, and a second call returns the first answer.
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
