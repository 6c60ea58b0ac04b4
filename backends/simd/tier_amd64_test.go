//go:build !noasm && !purego

package simd

import (
	"bufio"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the routines of a file require is what their tier asks for.
func TestTiersNameWhatTheRoutinesRequire(t *testing.T) {
	for file, tier := range map[string][]string{
		"avx512_amd64.s": {"AVX", "AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL"},
		"avx2_amd64.s":   {"AVX", "AVX2", "FMA3", "F16C", "CPUID"},
	} {
		f, err := os.Open(file)
		require.NoError(t, err)
		defer f.Close()
		required := map[string]bool{}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if list, ok := strings.CutPrefix(lines.Text(), "// Requires: "); ok {
				for _, name := range strings.Split(list, ", ") {
					required[name] = true
				}
			}
		}
		var names []string
		for name := range required {
			names = append(names, name)
		}
		require.ElementsMatch(t, tier, names, file)
	}
}
