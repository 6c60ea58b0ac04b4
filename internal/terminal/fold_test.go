package terminal

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestFold(t *testing.T) {
	for _, test := range []struct {
		line  string
		width int
		want  string
	}{
		{"short", 20, "short\n"},
		{"kernel  one two three four five", 20, "kernel  one two\n        three four\n        five\n"},
		{"pass  kernel  median  p10  p90", 20, "pass  kernel\n    median  p10  p90\n"},
		{strings.Repeat("x", 25), 20, strings.Repeat("x", 20) + "\n" + strings.Repeat("x", 5) + "\n"},
		{"", 20, "\n"},
	} {
		require.Equal(t, test.want, fold(test.line, test.width))
	}
}

func FuzzFold(f *testing.F) {
	f.Add("pass  problem  b1-h8-g2-n128-m512-d64-f32-causal  simd/fwd_avx512 *  1.2ms", 30)
	f.Fuzz(func(t *testing.T, line string, width int) {
		line = strings.ToValidUTF8(strings.ReplaceAll(line, "\n", " "), "?")
		width = narrowest + (width&0xff)%100
		folded := fold(line, width)
		for part := range strings.Lines(folded) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(part, "\n")), width, "%q", folded)
		}
		without := func(s string) string { return strings.NewReplacer(" ", "", "\n", "").Replace(s) }
		require.Equal(t, without(line), without(folded))
	})
}
