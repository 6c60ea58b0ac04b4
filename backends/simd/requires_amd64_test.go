//go:build !purego

package simd_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tierFeatures lists the CPU features that each tier checks. A key is the prefix of the tier's
// assembly files. Features have the names that avo gives them.
var tierFeatures = map[string][]string{
	"avx2":       {"SSE", "AVX", "AVX2", "FMA3", "F16C", "CPUID"},
	"avx512":     {"SSE", "AVX", "AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL"},
	"avx512bf16": {"SSE", "AVX", "AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL", "AVX512BF16"},
	"amxbf16":    {"SSE", "AVX", "AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL", "AVX512BF16", "AMXBF16"},
}

// Every instruction of an assembly file must belong to the file's tier. Otherwise it would fault on
// a processor that has only this tier. Instructions that Go's assembler does not support are
// written as data. They belong to AVX512-BF16 or AMX-BF16.
func TestInstructionsBelongToTheirTier(t *testing.T) {
	const maxBytes = 200 << 10 // of generated code
	files, err := filepath.Glob("*_amd64.s")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		prefix, _, _ := strings.Cut(file, "_")
		features, ok := tierFeatures[prefix]
		require.True(t, ok && strings.HasSuffix(file, "_amd64.s"), "%s: want <tier>_..._amd64.s with a tier of the table", file)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.LessOrEqual(t, len(text), maxBytes, file)
		lines, list := 0, ""
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "LONG ") || strings.HasPrefix(line, "WORD ") || strings.HasPrefix(line, "BYTE ") {
				require.Regexp(t, "AVX512BF16|AMXBF16", list, file)
			}
			after, ok := strings.CutPrefix(line, "// Requires: ")
			if !ok {
				continue
			}
			lines, list = lines+1, after
			for _, feature := range strings.Split(list, ", ") {
				if !slices.Contains([]string{"CPUID", "CMOV", "MMX+"}, feature) { // which every amd64 processor has
					require.Contains(t, features, feature, file)
				}
			}
		}
		require.NotZero(t, lines, "%s says nowhere what it requires", file)
	}
}
