package main

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The files match the repository. Compressed data is compared uncompressed, as Go versions compress
// differently.
func TestFiles(t *testing.T) {
	files, err := build(t.Context(), root)
	require.NoError(t, err)
	require.Len(t, files, 5)
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err, "make site makes it")
		require.Equal(t, unpacked(t, want), unpacked(t, got), "docs/site/%s is not what the program makes: make site", name)
	}
	made, err := filepath.Glob("../data/*")
	require.NoError(t, err)
	require.Len(t, made, 5, "nothing else makes files there, and go.mod is not made")
}

var packedText = regexp.MustCompile(`H4sI[A-Za-z0-9+/]*=*`)

func unpacked(t *testing.T, text []byte) string {
	return packedText.ReplaceAllStringFunc(strings.ReplaceAll(string(text), "\r\n", "\n"), func(s string) string {
		b, err := base64.StdEncoding.DecodeString(s)
		require.NoError(t, err)
		b, err = unzip(b)
		require.NoError(t, err)
		return hash(b)
	})
}

// All that a visitor loads before a race with others is small.
func TestSize(t *testing.T) {
	total := 0
	require.NoError(t, filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == "mksite" || name == "ort") {
			return fs.SkipDir
		}
		if !entry.IsDir() {
			info, err := entry.Info()
			require.NoError(t, err)
			total += int(info.Size())
		}
		return nil
	}))
	require.Greater(t, total, 100_000)
	require.LessOrEqual(t, total, 300_000)
}

// The page has the colors of the report, and the version of onnxruntime-web that make site-ort fetches.
func TestSharedWords(t *testing.T) {
	plot, err := read(root, "internal/report/plot.css")
	require.NoError(t, err)
	css, err := read(root, "docs/site/site.css")
	require.NoError(t, err)
	colors := regexp.MustCompile(`--\w+:#[0-9a-f]+`)
	require.Len(t, colors.FindAllString(plot, -1), 2*14)
	require.Equal(t, colors.FindAllString(plot, -1), colors.FindAllString(css, -1))
	makefile, err := read(root, "docs/site/Makefile")
	require.NoError(t, err)
	require.Contains(t, makefile, "onnxruntime-web@"+ortVersion+"\n")
}

// The text has the sample's number of tokens, and every piece is used.
func TestTokens(t *testing.T) {
	s, err := readSample(t.Context(), root)
	require.NoError(t, err)
	require.Len(t, s.Tokens, 121)
	require.Equal(t, []string{"[CLS]", "it", "is", "a", "truth"}, s.Tokens[:5])
	all := " " + strings.Join(s.Tokens, " ") + " "
	for _, p := range pieces {
		require.Contains(t, all, " "+strings.Join(p, " ")+" ")
	}
}

// The page shows Go, and each language of the guide to bindings.
func TestQuickstart(t *testing.T) {
	folder := t.TempDir()
	readme := "# x\n\n## Install\n\n```sh\ngo get x\n```\n\n## Use\n\n```go\na := 1 < 2\n```\n"
	_, err := readQuickstart(folder, readme)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.Mkdir(filepath.Join(folder, "docs"), 0o777))
	c, python := "# x\n\n## JavaScript\n\n```js\nlet x\n```\n\n## C\n\n```c\nint x;\n```\n", "\n## Python\n\n```python\nimport x\n```\n"
	require.NoError(t, os.WriteFile(filepath.Join(folder, bindings), []byte(c), 0o666))
	_, err = readQuickstart(folder, readme)
	require.ErrorContains(t, err, "no block of python under Python")
	require.NoError(t, os.WriteFile(filepath.Join(folder, bindings), []byte(c+python), 0o666))
	list, err := readQuickstart(folder, readme)
	require.NoError(t, err)
	require.Len(t, list, 4)
	require.Equal(t, []block{{"to install", "go get x"}, {"attention in Go", "a := 1 < 2"}}, list[0].Blocks)
	require.Equal(t, "let x", list[1].Blocks[0].Text)
	require.Equal(t, "int x;", list[2].Blocks[0].Text)
	require.Equal(t, "import x", list[3].Blocks[0].Text)
	_, err = readQuickstart(folder, "# x\n")
	require.ErrorContains(t, err, "README.md")
}

func TestTable(t *testing.T) {
	before, rows, after, err := table("one\n\ntwo `x`\n\n| a | b |\n|---|---|\n| **1** | [x](y.md) < |\n\nthree")
	require.NoError(t, err)
	require.Equal(t, "two `x`", before)
	require.Equal(t, "three", after)
	require.Contains(t, string(rows), "<tr><th>a</th><th>b</th></tr>")
	require.Contains(t, string(rows), "<tr><td><b>1</b></td><td>x &lt;</td></tr>")
	for _, text := range []string{"", "none", "| a |\n|---|"} {
		_, _, _, err := table(text)
		require.Error(t, err, "%q", text)
	}
}

func TestServe(t *testing.T) {
	for _, path := range []string{"/", "/page.js", "/data/engines.js"} {
		w := httptest.NewRecorder()
		handler("..").ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		require.Equal(t, 200, w.Code, path)
		require.Equal(t, "same-origin", w.Header().Get("Cross-Origin-Opener-Policy"))
		require.Equal(t, "require-corp", w.Header().Get("Cross-Origin-Embedder-Policy"))
	}
	for _, addr := range []string{"0.0.0.0:0", ":0", "8400", "example.com:0"} {
		err := run(t.Context(), []string{"-serve", addr, root}, new(bytes.Buffer))
		require.ErrorContains(t, err, addr)
	}
}

func TestArguments(t *testing.T) {
	require.ErrorContains(t, run(t.Context(), nil, new(bytes.Buffer)), "0 arguments")
	require.ErrorContains(t, run(t.Context(), []string{t.TempDir()}, new(bytes.Buffer)), "kernel.wasm")
}
