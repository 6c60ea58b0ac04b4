package main

import (
	"bytes"
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

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

// Any argument, name or file content prints as one line without terminal controls.
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

// A faulty is a context whose methods panic.
type faulty struct{ context.Context }

func (faulty) Err() error { panic("no luck with \x1b[31m") }

// A bug ends the command with its own status and one line with the location.
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

// A NaN in the input is in the oracle's output too.
func TestCheckOfNaN(t *testing.T) {
	nan := float32(math.NaN())
	tensors := []float32{nan, 1, 2, 3}
	q := f32("q", 0, 1, 1, 2, 2)
	in := writeFile(t, "in.safetensors", withValues(q, tensors), f32("k", 0, 1, 1, 2, 2), f32("v", 0, 1, 1, 2, 2), f32("do", 0, 1, 1, 2, 2))
	for _, flags := range [][]string{{}, {"--pass", "fwd,bwd"}, {"--backend", "simd/fwd_generic"}, {"--backend", "wasm", "--pass", "fwd,bwd"}} {
		code, stdout, stderr := flashrun(t, append([]string{"run", "--in", in, "--check", "--repeat", "1", "--json"}, flags...)...)
		require.Equal(t, exitOK, code, stderr)
		got := decode(t, stdout)
		require.Less(t, got["max_abs_error"], 1e-5, "%v", flags)
	}
}

// withValues returns a float32 tensor of the same name and shape.
func withValues(t safetensors.Tensor, x []float32) safetensors.Tensor {
	return safetensors.FromFloat32s(t.Name, t.Shape, x)
}
