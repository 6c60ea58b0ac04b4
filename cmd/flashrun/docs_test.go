package main

import (
	"bytes"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/stretchr/testify/require"
)

var writeDocs = flag.Bool("write-docs", false, "write what is made from the commands and kernels instead of comparing")

// exampleResults are the runs that docs/report shows.
var exampleResults = []string{"../../docs/report/grid.json", "../../docs/report/decode.json"}

// The manual pages and completions in docs/ match the commands, and the example report matches its
// results. make docs writes them through this test, so that flashrun does not contain the writer of
// manual pages.
func TestDocs(t *testing.T) {
	const folder = "../../docs"
	want := docsFiles(t)
	if *writeDocs {
		for _, sub := range []string{"man", "completions"} {
			require.NoError(t, os.RemoveAll(filepath.Join(folder, sub)))
			require.NoError(t, os.Mkdir(filepath.Join(folder, sub), 0o755))
		}
		for name, text := range want {
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), text, 0o644))
		}
	}
	root := os.DirFS(folder)
	have, err := fs.Glob(root, "man/*")
	require.NoError(t, err)
	scripts, err := fs.Glob(root, "completions/*")
	require.NoError(t, err)
	for _, name := range append(have, scripts...) {
		require.Contains(t, want, name, "docs/%s has no command: make docs", name)
	}
	for name, text := range want {
		got, err := fs.ReadFile(root, name)
		require.NoError(t, err, "make docs writes it")
		got = bytes.ReplaceAll(got, []byte("\r\n"), []byte("\n"))
		require.True(t, bytes.Equal(text, got), "docs/%s is not what the command says: make docs", name)
	}
}

// docsFiles returns the files by their names in docs/.
func docsFiles(t *testing.T) map[string][]byte {
	files := map[string][]byte{}
	write := func(name string, err error, b *bytes.Buffer) {
		require.NoError(t, err, name)
		files[name] = b.Bytes()
	}
	root := newRoot()
	// A page depends on its sources, not on the date.
	date := time.Date(2026, time.November, 1, 0, 0, 0, 0, time.UTC)
	for _, cmd := range append(root.Commands(), root) {
		if cmd != root && !cmd.IsAvailableCommand() {
			continue
		}
		cmd.DisableAutoGenTag = true
		cmd.Long = preformatted(cmd.Long)
		var b bytes.Buffer
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
		err := doc.GenMan(cmd, &doc.GenManHeader{Section: "1", Date: &date, Source: "flashkit", Manual: "flashkit"}, &b)
		write("man/"+name+".1", err, &b)
	}
	for name, generate := range map[string]func(*cobra.Command, *bytes.Buffer) error{
		"flashrun.bash": func(c *cobra.Command, b *bytes.Buffer) error { return c.GenBashCompletionV2(b, true) },
		"_flashrun":     func(c *cobra.Command, b *bytes.Buffer) error { return c.GenZshCompletion(b) },
		"flashrun.fish": func(c *cobra.Command, b *bytes.Buffer) error { return c.GenFishCompletion(b, true) },
		"flashrun.ps1":  func(c *cobra.Command, b *bytes.Buffer) error { return c.GenPowerShellCompletionWithDesc(b) },
	} {
		var b bytes.Buffer
		err := generate(newRoot(), &b)
		write("completions/"+name, err, &b)
	}
	for name, args := range map[string][]string{"report.html": nil, "roofline.svg": {"--plot", "roofline"}} {
		out := filepath.Join(t.TempDir(), name)
		ok(t, slices.Concat([]string{"report", "-o", out}, args, exampleResults)...)
		text, err := os.ReadFile(out)
		write("report/"+name, err, bytes.NewBuffer(text))
	}
	return files
}

// preformatted indents lines enough that a manual page keeps them unchanged.
func preformatted(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "  ") {
			lines[i] = "    " + line
		}
	}
	return strings.Join(lines, "\n")
}
