package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/safetensors"
)

// A tensor of an unknown type, which nothing asks for, is no reason to refuse a file.
func TestTensorOfAnUnknownType(t *testing.T) {
	q := f32("q", 0, 1, 1, 2, 4)
	path := writeFile(t, "in.safetensors", q, f32("k", 0, 1, 1, 2, 4), f32("v", 0, 1, 1, 2, 4), f32("weights", 0, 3))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	at := bytes.LastIndex(text, []byte(`"F32"`))
	copy(text[at:], `"F4X"`)
	require.NoError(t, os.WriteFile(path, text, 0o644))
	require.Contains(t, ok(t, "run", "--in", path, "--repeat", "1", "--out", filepath.Join(t.TempDir(), "o")), "b1-h1-g1-n2-m2-d4-f32")
}

// NaN in the input gives one warning with the tensors and counts: otherwise it shows only as NaN in
// results, or not at all under a mask.
func TestNaNInTheInput(t *testing.T) {
	nan := float32(math.NaN())
	q, k, v := f32("q", 0, 1, 1, 2, 4), f32("k", 0, 1, 1, 2, 4), f32("v", 0, 1, 1, 2, 4)
	k = safetensors.FromFloat32s("k", k.Shape, []float32{1, nan, 1, 1, 1, 1, -nan, 1})
	bias := safetensors.FromFloat32s("bias", []int{1, 2}, []float32{nan, float32(math.Inf(-1))})
	path := writeFile(t, "in.safetensors", q, k, v, bias)
	for flags, want := range map[string]string{
		"":             "flashrun: warning: the input has NaN: 2 of 8 elements of k, 1 of 2 elements of bias\n",
		"--dtype=f16":  "flashrun: warning: the input has NaN: 2 of 8 elements of k, 1 of 2 elements of bias\n",
		"--dtype=bf16": "flashrun: warning: the input has NaN: 2 of 8 elements of k, 1 of 2 elements of bias\n",
		"--check":      "flashrun: warning: the input has NaN: 2 of 8 elements of k, 1 of 2 elements of bias\n",
	} {
		code, stdout, stderr := flashrun(t, append([]string{"run", "--in", path, "--repeat", "1"}, strings.Fields(flags)...)...)
		require.Zero(t, code)
		require.Equal(t, want, stderr)
		require.NotContains(t, stdout, "warning")
	}
	path = writeFile(t, "in.safetensors", q, k, v, safetensors.FromInt32s("kv_lens", []int{1}, []int32{1}))
	_, _, stderr := flashrun(t, "run", "--in", path, "--repeat", "1")
	require.Equal(t, "flashrun: warning: the input has NaN: 1 of 4 elements of k\n", stderr, "of the key that there is")
	path = writeFile(t, "in.safetensors", q, f32("k", 0, 1, 1, 2, 4), v, f32("bias", 0, 1, 2))
	_, _, stderr = flashrun(t, "run", "--in", path, "--repeat", "1")
	require.Empty(t, stderr)
}

// Entries of a page table beyond the length of a sequence may be anything.
func TestPagesBeyondLengths(t *testing.T) {
	file := func(pages ...int32) string {
		return writeFile(t, "in.safetensors", f32("q", 0, 2, 1, 2, 4), f32("k", 0, 4, 1, 2, 4), f32("v", 0, 4, 1, 2, 4),
			safetensors.FromInt32s("kv_lens", []int{2}, []int32{2, 0}), safetensors.FromInt32s("pages", []int{2, 2}, pages))
	}
	for _, backend := range []string{"simd", "simd/fwd_generic", "wasm"} {
		stdout := ok(t, "run", "--in", file(3, -1, math.MaxInt32, math.MinInt32), "--repeat", "1", "--check", "--backend", backend)
		require.Contains(t, stdout, "-page2")
	}
	code, _, stderr := flashrun(t, "run", "--in", file(-1, 0, 0, 0), "--repeat", "1")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "tensor pages[0] = -1")
}
