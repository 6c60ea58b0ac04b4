package simd

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// clearPadding clears exactly the given bytes, at any address and of any length.
func TestClearPadding(t *testing.T) {
	const margin = 100
	for range 200 {
		from, n := margin+rand.IntN(margin), rand.IntN(1<<(1+rand.IntN(18)))
		got := bytes.Repeat([]byte{0xa5}, from+n+margin)
		want := bytes.Clone(got)
		clear(want[from:][:n])
		clearPadding(got[from:][:n])
		require.True(t, bytes.Equal(want, got), "%d bytes from %d on", n, from)
	}
}
