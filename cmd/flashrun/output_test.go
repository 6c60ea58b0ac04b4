package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/safetensors"
)

// A writing is a command line that writes a file, with the name of the file's kind.
type writing struct {
	name string
	kind string
	args func(file string) []string
	env  string // variable that names the file, if not in the arguments
}

func writings(results string) []writing {
	out := func(args ...string) func(string) []string {
		return func(file string) []string { return append(slices.Clone(args), "--out", file) }
	}
	fixed := func(args ...string) func(string) []string { return func(string) []string { return args } }
	calibrate := calibrateTiny("--backend", "simd/fwd_generic")
	run := []string{"run", "--problem", tiny, "--repeat", "1", "--backend", "simd"}
	bench := []string{"bench", "--problem", tiny, "--backend", "simd", "--limits=false", "--time-per-case", "1ms"}
	return []writing{
		{"run --out", "an output of flashrun run", out(run...), ""},
		{"bench --out", "a result of flashrun bench", out(bench...), ""},
		{"report --out html", "a page of flashrun report", out("report", results, "--format", "html"), ""},
		{"report --out svg", "an image of flashrun report", out("report", results, "--format", "svg"), ""},
		{"calibrate --out", "a profile", out(calibrate...), ""},
		{"calibrate", "a profile", fixed(calibrate...), "FLASHKIT_PROFILE"},
		{"run", "", fixed(run...), "FLASHKIT_PROFILE"}, // which adds to a profile
		{"bench", "", fixed(bench...), "FLASHKIT_PROFILE"},
	}
}

// No command replaces a file of another kind, by any name. It replaces its own files.
func TestForeignFilesStay(t *testing.T) {
	dir := t.TempDir()
	results := filepath.Join(t.TempDir(), "results.json")
	ok(t, "bench", "--problem", tiny, "--backend", "simd", "--limits=false", "--time-per-case", "1ms", "--out", results)
	list := writings(results)
	foreign := foreignFiles(t)
	for i, w := range list[:5] { // each kind is foreign to the others
		file := filepath.Join(dir, "own")
		ok(t, w.args(file)...)
		ok(t, w.args(file)...)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		foreign[w.kind] = string(text)
		require.NoError(t, os.Remove(file))
		require.Len(t, foreign, len(foreignFiles(t))+i+1)
	}
	for _, w := range list {
		for name, text := range foreign {
			if w.kind == name || w.kind == "" && name == "a profile" {
				continue
			}
			t.Run(w.name+" over "+name, func(t *testing.T) {
				file := filepath.Join(dir, "file")
				require.NoError(t, os.WriteFile(file, []byte(text), 0o640))
				before, err := os.Stat(file)
				require.NoError(t, err)
				if w.env != "" {
					t.Setenv(w.env, file)
				}
				code, stdout, stderr := flashrun(t, w.args(file)...)
				if w.kind != "" {
					require.Equal(t, exitUsage, code, stderr)
					require.Empty(t, stdout)
					require.Contains(t, stderr, file+": exists and is not "+w.kind)
					require.Contains(t, stderr, w.named())
				}
				after, err := os.Stat(file)
				require.NoError(t, err)
				require.True(t, os.SameFile(before, after))
				got, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, text, string(got))
				left, err := os.ReadDir(dir)
				require.NoError(t, err)
				require.Len(t, left, 1)
			})
		}
	}
}

// named returns how the caller has named the file.
func (w *writing) named() string {
	if w.env != "" {
		return w.env
	}
	return "--out"
}

// foreignFiles returns files of other programs with names like ours.
func foreignFiles(t *testing.T) map[string]string {
	tensors := func(metadata map[string]string) string {
		var text strings.Builder
		f := &safetensors.File{Metadata: metadata, Tensors: []safetensors.Tensor{safetensors.FromFloat32s("o", []int{1}, []float32{1})}}
		require.NoError(t, f.Write(&text))
		return text.String()
	}
	return map[string]string{
		"weights":           tensors(map[string]string{"format": "pt"}),
		"bare weights":      tensors(nil),
		"kernels of others": tensors(map[string]string{"kernel": "rbf", "problem": "xor"}),
		"a page":            "<!DOCTYPE html>\n<html><title>Attention on all fronts</title>",
		"an image":          `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><style>svg{}</style></svg>`,
		"an object":         `{"format": 1, "name": "theirs"}`,
		"a list":            "[1]", "notes": "not to be lost\n", "nonsense": "\x00", "a blank": " ",
	}
}

// Every command with a flag for a file that it writes is in the list.
func TestWritingsAreComplete(t *testing.T) {
	var flags []string
	for _, c := range newRoot().Commands() {
		visitOut(c, func() { flags = append(flags, c.Name()+" --out") })
	}
	for _, w := range writings("") {
		flags = slices.DeleteFunc(flags, func(f string) bool { return strings.HasPrefix(w.name, f) })
	}
	require.Empty(t, flags)
}

func visitOut(c *cobra.Command, found func()) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		kind, usage := pflag.UnquoteUsage(f)
		if f.Name == "out" || kind == "file" && (strings.Contains(usage, "write") || strings.Contains(usage, "save")) {
			found()
		}
	})
}
