package wasm

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// js/ABI.md has every word of the block, every export, every code and the sizes of scratch. make js runs
// the page's host.
func TestABIPage(t *testing.T) {
	text, err := os.ReadFile("js/ABI.md")
	require.NoError(t, err)
	page := string(text)
	source, err := os.ReadFile("kernel/kernel.c")
	require.NoError(t, err)

	_, rest, found := strings.Cut(string(source), "typedef struct {\n  u32 magic")
	require.True(t, found)
	fields, _, found := strings.Cut("u32 magic"+rest, "} block;")
	require.True(t, found)
	word := 0
	var want, got []string
	for _, m := range regexp.MustCompile(`(?m)^\s*(u32|int|float|i64) ([^;]+);`).FindAllStringSubmatch(fields, -1) {
		for field := range strings.SplitSeq(m[2], ", ") {
			name, n, _ := strings.Cut(strings.TrimSuffix(field, "]"), "[")
			want = append(want, fmt.Sprintf("%d %s", word, name))
			words, err := strconv.Atoi(n)
			if err != nil {
				words = 1
			}
			if m[1] == "i64" {
				words = 2
			}
			word += words
		}
	}
	require.Equal(t, blockWords, word)
	for _, m := range regexp.MustCompile("(?m)^\\| (\\d+) \\| `(\\w+)` \\|").FindAllStringSubmatch(page, -1) {
		got = append(got, m[1]+" "+m[2])
	}
	require.Equal(t, want, got)
	require.Contains(t, page, fmt.Sprintf("%#x |", magic))
	require.Contains(t, page, fmt.Sprintf("has ABI version %d", version))

	_, functionsTable, found := strings.Cut(page, "## Functions\n")
	require.True(t, found)
	functionsTable, _, _ = strings.Cut(functionsTable, "\nThe numbers")
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(functionsTable, -1) {
		named[m[1]] = true
	}
	for name := range functions() {
		require.True(t, named[name], "the page lacks %s", name)
	}
	for code := range codes {
		require.Contains(t, page, fmt.Sprintf("\n| %d | ", code))
	}
	require.NotContains(t, page, fmt.Sprintf("\n| %d | the", len(codes)))

	// The constants of the formulas for scratch, at D = DV = 8 and 128 keys: m (d + e) + b and so on.
	c := problem(t, "b1-h1-g1-n1-m128-d8-f32").Ask(0)
	forward, backward := newPlan(&variants[0], c), newPlan(&variants[1], c)
	require.EqualValues(t, 4*(128*16+4+128*6*8+2944), forward.scratch())
	require.EqualValues(t, 4*(128*16*8+4+128*6*8+13572), backward.scratch())
	require.EqualValues(t, 4*(16*8+280), forward.scratchDecode())
	for _, formula := range []string{"m (d + e) + b + 128 (4 d + 2 e) + 2944 |", "m (10 d + 6 e) + b + 128 (4 d + 2 e) + 13572 |", "16 e + 280 |"} {
		require.Contains(t, page, formula)
	}
}
