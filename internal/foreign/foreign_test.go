package foreign

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFormat(t *testing.T) {
	for start, want := range map[string]string{
		"": "", "not known": "", "\x93NUMPY\x01": "a NumPy array", "PK\x03\x04": "a zip archive", "<HTML>": "a web page",
		"version https://git-lfs.github.com/spec/v1\n": "a pointer of Git LFS",
		"\x02\x00\x00\x00\x00\x00\x00\x00{}":           "a safetensors file", "\x03\x00\x00\x00\x00\x00\x00\x00{}": "",
	} {
		got := Format([]byte(start))
		require.True(t, strings.HasPrefix(got, want) && (want != "" || got == ""), "%q: %s", start, got)
	}
}
