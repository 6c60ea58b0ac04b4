package main

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/safetensors"
)

func TestMessage(t *testing.T) {
	for in, want := range map[string]string{
		"plain":               "plain",
		"two\nlines":          "two; lines",
		"\x1b[31mred\a":       `\x1b[31mred\a`,
		"tab\tand\r":          `tab\tand\r`,
		"µ is fine, \xff no":  `µ is fine, \xff no`,
		"turned \u202e round": `turned \u202e round`,
		"it's \"quoted\"":     `it's "quoted"`,
	} {
		require.Equal(t, want, message(in))
	}
	long := message("--flag " + strings.Repeat("µ", 5000) + ": must be shorter")
	require.Equal(t, longest, utf8.RuneCountInString(long))
	require.True(t, strings.HasPrefix(long, "--flag µ"))
	require.True(t, strings.HasSuffix(long, "µ: must be shorter"))
	require.Contains(t, long, " ... ")
}

func FuzzMessage(f *testing.F) {
	f.Add("a\nb\x1b[31m\xff\u202e")
	f.Fuzz(func(t *testing.T, s string) {
		got := message(s)
		require.LessOrEqual(t, utf8.RuneCountInString(got), longest)
		for _, r := range got {
			require.True(t, unicode.IsPrint(r), "%q", got)
		}
	})
}

// Whatever an argument, a name or a file holds, what is printed is one line that no
// terminal obeys.
func TestHostileText(t *testing.T) {
	const escape = "\x1b]0;title\a\x1b[31m"
	in := writeFile(t, "in.safetensors", f32(escape, 0, 1))
	for _, args := range [][]string{
		{"run", "--backend", escape}, {"run", "--problem", escape}, {"run", "--in", escape}, {"run", "--in", escape + "=x"}, {"run", "--in", in},
		{"run", "--dtype", escape}, {"run", "--scale", escape}, {"run", "--" + escape}, {escape}, {"explain", escape}, {"bench", "--trace", escape},
		{"bench", "--compare", in}, {"bench", "--seq", escape}, {"run", "--backend", strings.Repeat("long", 1<<16)}, {"run", "--problem", strings.Repeat("b1-", 1<<16)},
	} {
		code, stdout, stderr := flashrun(t, args...)
		require.Equal(t, exitUsage, code)
		require.Empty(t, stdout)
		requireClear(t, code, stdout, stderr)
		for _, r := range strings.TrimSuffix(stderr, "\n") {
			require.True(t, unicode.IsPrint(r), "%q", stderr)
		}
	}
}

// A faulty is a context that panics when it is asked.
type faulty struct{ context.Context }

func (faulty) Err() error { panic("no luck with \x1b[31m") }

// A bug ends the command with a status of its own, and with one line that says where.
func TestCrash(t *testing.T) {
	out := filepath.Join(t.TempDir(), "o.safetensors")
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitCrashed, execute(faulty{t.Context()}, []string{"run", "--out", out}, &stdout, &stderr))
	require.Empty(t, stdout.String())
	require.Regexp(t, `^flashrun: internal error: no luck with \\x1b\[31m in .*faulty\.Err, line [0-9]+; please report it: https://\S+\n$`, stderr.String())
	left, err := os.ReadDir(filepath.Dir(out))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestDifference(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, test := range []struct {
		dtype     flashkit.DType
		got, want float64
		distance  float64 // NaN for another class
	}{
		{0, 1, 1, 0}, {0, 1, 1.5, .5}, {0, nan, nan, 0}, {0, inf, inf, 0}, {0, -inf, -inf, 0},
		{0, nan, 1, nan}, {0, 1, nan, nan}, {0, inf, nan, nan}, {0, nan, -inf, nan}, {0, inf, -inf, nan}, {0, inf, 1e30, nan}, {0, 1e30, inf, nan},
		{0, inf, 1e39, 0}, {0, -inf, -1e39, 0}, {0, -inf, 1e39, nan}, {0, 3e38, 1e39, nan},
		{flashkit.Float16, inf, 70000, 0}, {flashkit.Float16, 65504, 70000, nan}, {flashkit.Float16, 65504, 65510, 6}, {flashkit.BFloat16, inf, 70000, nan},
	} {
		a := newTensor(test.dtype, [4]int{1, 2, 3, 2}, bhsd)
		want := make([]float64, a.Len())
		setValue(&a, 7, float32(test.got))
		want[7] = test.want
		c := newDifference("o", &a, a.Shape())
		for i, got := range elements(&a) {
			c.add(i, got, want[i])
		}
		name := fmt.Sprintf("%v %v %v", test.dtype, test.got, test.want)
		if math.IsNaN(test.distance) {
			require.True(t, math.IsNaN(float64(c.error)), name)
			require.Equal(t, fmt.Sprintf("o[0 1 0 1] is %.6g where the oracle has %.6g", value(&a, 7), test.want), c.wrong)
			continue
		}
		require.Equal(t, test.distance, float64(c.error), name)
		require.Empty(t, c.wrong, name)
	}
}

// A NaN in the input is in the oracle's output too.
func TestCheckOfNaN(t *testing.T) {
	nan := float32(math.NaN())
	tensors := []float32{nan, 1, 2, 3}
	q := f32("q", 0, 1, 1, 2, 2)
	in := writeFile(t, "in.safetensors", withValues(q, tensors), f32("k", 0, 1, 1, 2, 2), f32("v", 0, 1, 1, 2, 2), f32("do", 0, 1, 1, 2, 2))
	for _, flags := range [][]string{{}, {"--backward"}, {"--backend", "simd/fwd_generic"}, {"--backend", "wasm", "--backward"}} {
		got := decode(t, ok(t, append([]string{"run", "--in", in, "--check", "--repeat", "1", "--json"}, flags...)...))
		require.Less(t, got["max_abs_error"], 1e-5, "%v", flags)
	}
}

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

// withValues returns a float32 tensor of the same name and shape.
func withValues(t safetensors.Tensor, x []float32) safetensors.Tensor {
	return safetensors.FromFloat32s(t.Name, t.Shape, x)
}
