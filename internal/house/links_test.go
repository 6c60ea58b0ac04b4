package house

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// Every relative link of every Markdown file leads to a file, and every anchor to a
// heading. Links to other hosts are only parsed: the test works offline.
func TestLinks(t *testing.T) {
	enter()
	wrong, links := brokenLinks(t, os.DirFS("."))
	for _, w := range wrong {
		t.Error(w)
	}
	require.Greater(t, links, 50)
}

// The test of links would be worth nothing if it let everything through.
func TestBrokenLinks(t *testing.T) {
	wrong, links := brokenLinks(t, fstest.MapFS{
		"a.md": {Data: []byte("# A `b` c, *d*: e_f\n" +
			"[1](docs/b.md) [2](docs/b.md#two-1 \"title\") [3](#a-b-c-d-e_f) [4](docs) [5](https://example.com/x#y) ![6](x.svg)\n" +
			"[7]: docs/b.md#two\n`[no](link)`\n```\n[no](link)\n# no heading\n```\n    [no](link)\n" +
			"[x1](gone.md) [x2](docs/b.md#three) [x3](#no-heading) [x4](../a.md) [x5](/docs/b.md) [x6](https:///x) [x7](ftp://example.com)\n" +
			"<a href=\"gone.html\">x8</a> <img src=\"x.svg\"> [x9](x.svg#L3) [x10]( ) [x11](Docs/b.md)\n" +
			"- list\n    - [x12](gone.md)\n\n    [no](link)\n\n    [no](link)\n[x13](gone.md)\n")},
		"docs/b.md": {Data: []byte("# Two\n## Two\n[up](../a.md)\n")},
		"x.svg":     {Data: []byte("<svg/>")},
	})
	require.Equal(t, 9+13, links)
	require.Len(t, wrong, 13, "%v", wrong)
}

// brokenLinks returns the errors of the links in Markdown files, and the number of links.
func brokenLinks(t *testing.T, root fs.FS) (wrong []string, links int) {
	pages := map[string]string{}
	require.NoError(t, fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && slices.Contains([]string{".git", ".venv", "bin", "dist"}, name) {
			return fs.SkipDir
		}
		if !entry.IsDir() && path.Ext(name) == ".md" {
			text, err := fs.ReadFile(root, name)
			pages[name] = withoutCode(string(text))
			return err
		}
		return nil
	}))
	for name, text := range pages {
		for _, target := range linksOf(text) {
			links++
			if problem := follow(root, pages, name, target); problem != "" {
				wrong = append(wrong, fmt.Sprintf("%s: %s: %s", name, target, problem))
			}
		}
	}
	slices.Sort(wrong)
	return wrong, links
}

var (
	fences     = regexp.MustCompile("(?ms)^ *```.*?^ *```[^\n]*$")
	indented   = regexp.MustCompile(`\n[ \t]*\n(?:(?: {4}|\t)[^\n]*(?:\n|$)|[ \t]*\n)+`)
	spans      = regexp.MustCompile("`[^`\n]+`")
	inline     = regexp.MustCompile(`\]\(([^)]*)\)`)
	references = regexp.MustCompile(`(?m)^\[[^\]]+\]: *(\S+)`)
	attributes = regexp.MustCompile(`<(?:a|img)\b[^>]*\b(?:href|src)="([^"]*)"`)
	headings   = regexp.MustCompile(`(?m)^#{1,6} +(.*?)[ #]*$`)
	ids        = regexp.MustCompile(`<a\b[^>]*\b(?:id|name)="([^"]*)"`)
	linked     = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	unslugged  = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// withoutCode returns a page without its blocks of code.
func withoutCode(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	return indented.ReplaceAllString(fences.ReplaceAllString(text, ""), "\n\n")
}

// linksOf returns the targets of a page's links and images.
func linksOf(text string) (targets []string) {
	text = spans.ReplaceAllString(text, "")
	for _, pattern := range []*regexp.Regexp{inline, references, attributes} {
		for _, m := range pattern.FindAllStringSubmatch(text, -1) {
			target, _, _ := strings.Cut(strings.TrimSpace(m[1]), " ") // a title follows
			targets = append(targets, target)
		}
	}
	return targets
}

// follow returns the error of a link on a page, or "".
func follow(root fs.FS, pages map[string]string, page, target string) string {
	u, err := url.Parse(target)
	switch {
	case err != nil:
		return err.Error()
	case target == "":
		return "leads nowhere"
	case u.Scheme == "mailto":
		return ""
	case u.Scheme != "" || u.Host != "":
		if u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return "is no address of a page"
		}
		return ""
	case path.IsAbs(u.Path):
		return "must be relative"
	}
	file := page
	if u.Path != "" {
		file = path.Join(path.Dir(page), u.Path)
	}
	if _, err := fs.Stat(root, file); err != nil {
		return "there is no such file"
	}
	if u.Fragment != "" && !slices.Contains(anchors(pages[file]), u.Fragment) {
		return "has no such heading"
	}
	return ""
}

// anchors returns the anchors of a page's headings, as GitHub makes them.
func anchors(text string) (list []string) {
	seen := map[string]int{}
	for _, m := range headings.FindAllStringSubmatch(text, -1) {
		title := linked.ReplaceAllString(m[1], "$1")
		slug := strings.ReplaceAll(unslugged.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		if n := seen[slug]; n > 0 {
			list = append(list, fmt.Sprintf("%s-%d", slug, n))
		} else {
			list = append(list, slug)
		}
		seen[slug]++
	}
	for _, m := range ids.FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

// The index of RATIONALE.md has each of its questions once.
func TestRationaleIndex(t *testing.T) {
	text, err := os.ReadFile("RATIONALE.md")
	require.NoError(t, err)
	index, _, found := strings.Cut(string(text), "\n## ")
	require.True(t, found)
	var want []string
	for _, a := range anchors(withoutCode(string(text)))[1:] { // but for the title
		want = append(want, "#"+a)
	}
	require.ElementsMatch(t, want, linksOf(index))
	seen := map[string]bool{}
	for _, m := range headings.FindAllStringSubmatch(withoutCode(string(text)), -1) {
		require.False(t, seen[m[1]], "twice: %s", m[1])
		seen[m[1]] = true
	}
}
