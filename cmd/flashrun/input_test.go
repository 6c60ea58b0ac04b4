package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
