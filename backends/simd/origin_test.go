package simd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Code that derives random words from the seed also uses the origin, on the same line.
func TestSeedGoesWithOrigin(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	found := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for i, line := range strings.Split(string(text), "\n") {
			if strings.Contains(line, "rgs.Seed") {
				found++
				require.Regexp(t, `\.Origin|o\.Batch`, line, "%s:%d", name, i+1)
			}
		}
	}
	require.NotZero(t, found)
}
