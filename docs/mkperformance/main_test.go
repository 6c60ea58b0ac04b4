package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

const (
	maxTables = 13
	maxWords  = 1500 // without tables and commands
)

// The page is current and within its limits.
func TestPage(t *testing.T) {
	want, err := page(os.DirFS("../../bench/results"))
	require.NoError(t, err)
	got, err := os.ReadFile("../performance.md")
	require.NoError(t, err)
	require.Equal(t, string(want), strings.ReplaceAll(string(got), "\r\n", "\n"), "docs/performance.md differs from bench/results: make docs")
	require.True(t, kind.Is(want))

	prose := regexp.MustCompile("(?ms)^```.*?^```$|^<!--.*?-->$").ReplaceAllString(string(want), "")
	tables, words := 0, 0
	for _, line := range strings.Split(prose, "\n") {
		switch {
		case strings.HasPrefix(line, "|--"):
			tables++
		case !strings.HasPrefix(line, "|"):
			words += len(strings.Fields(line))
		}
	}
	t.Logf("%d tables, %d words", tables, words)
	require.Positive(t, tables)
	require.LessOrEqual(t, tables, maxTables)
	require.LessOrEqual(t, words, maxWords)
	require.NotContains(t, prose, "<no value>")
}

const small = `{"title": "A", "question": "How?", "machine": "M", "date": "2026-11-29", "peers": ["P 1.0"], "repeat": ["make x", "y"],
	"columns": ["a", "b|c", "d"], "rows": [["x", 1.60, ""], ["1, 2", 10, 2.0]], "notes": ["N."]}`

// Numbers keep their digits. Columns of numbers are aligned to the right.
func TestMarkdown(t *testing.T) {
	r, err := readResult(fstest.MapFS{"a.json": {Data: []byte(small)}}, "a.json")
	require.NoError(t, err)
	require.Equal(t, "### A\n\nHow?\n\n| a | b\\|c | d |\n|---|--:|--:|\n| x | 1.60 |  |\n| 1, 2 | 10 | 2.0 |\n\n"+
		"Hardware: M. Date: 2026-11-29. Peers: P 1.0.\n\n```sh\nmake x\ny\n```\n\n- N.\n", r.markdown(3))
}

func TestErrors(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{`"title": "A"`, `"title": ""`, "no title"},
		{`"machine": "M"`, `"machines": "M"`, "unknown field"},
		{`2026-11-29`, `29.11.2026`, "date"},
		{`"make x", "y"`, ``, "no columns, rows or repeat"},
		{`["x", 1.60, ""]`, `["x", 1.60]`, "row 0 has 2 cells; there are 3 columns"},
		{`10, 2.0]`, `true, 2.0]`, "row 1: true is neither text nor number"},
		{`10, 2.0]`, `null, 2.0]`, "row 1"},
		{`["N."]}`, `["N."]} {}`, "text after the result"},
		{`["N."]}`, `["N."]`, "EOF"},
	} {
		text := strings.Replace(small, c.old, c.new, 1)
		require.NotEqual(t, small, text)
		_, err := readResult(fstest.MapFS{"a.json": {Data: []byte(text)}}, "a.json")
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "a.json")
	}
}

// Every table of the template has a file, and every file has its place.
func TestFiles(t *testing.T) {
	results := fstest.MapFS{}
	_, err := page(results)
	require.ErrorContains(t, err, "no such result")
	for _, m := range regexp.MustCompile(`\{\{table "([^"]+)"`).FindAllStringSubmatch(pageTemplate, -1) {
		results[m[1]+".json"] = &fstest.MapFile{Data: []byte(small)}
	}
	_, err = page(results)
	require.NoError(t, err)
	results["more.json"] = &fstest.MapFile{Data: []byte(small)}
	_, err = page(results)
	require.ErrorContains(t, err, "more.json")
}

// Only a generated page is replaced.
func TestWrite(t *testing.T) {
	results, file := os.DirFS("../../bench/results"), filepath.Join(t.TempDir(), "page.md")
	require.NoError(t, write(results, file))
	require.NoError(t, write(results, file))
	require.NoError(t, os.WriteFile(file, []byte("# Mine\n"), 0o644))
	require.Error(t, write(results, file))
}
