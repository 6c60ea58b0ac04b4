package terminal

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProgressBar(t *testing.T) {
	p := NewProgress(&bytes.Buffer{})
	defer p.Done()
	p.Part(.25, "simd/fwd_avx2 b1", 90*time.Second)
	require.Equal(t, "[#####...............] 25%, about 1m20s left, simd/fwd_avx2 b1", p.line(10*time.Second))
	p.Part(1, "the last one", 0)
	require.Equal(t, "[####################] 100%, about 0s left, the last one", p.line(time.Second))
	p.Say("no bar")
	require.Equal(t, "no bar, 1s", p.line(time.Second))
	require.Equal(t, "short", cut("short", 79))
	require.Equal(t, strings.Repeat("µ", 79), cut(strings.Repeat("µ", 80), 79))
	require.Equal(t, "", cut("short", -1))
}
