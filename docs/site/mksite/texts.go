package main

import (
	"errors"
	"fmt"
	"html"
	"html/template"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A start is the quickstart for one language.
type start struct {
	Title    string
	Blocks   []block
	Link     string
	LinkText string
}

type block struct{ Label, Text string }

// bindings is the guide to other languages, with a section for each language.
const bindings = "docs/bindings.md"

// guides are the sections of the file bindings that the page shows. From each section, the page
// shows the first code block in the section's language.
var guides = []struct{ title, language string }{{"JavaScript", "js"}, {"C", "c"}, {"Python", "python"}}

func readQuickstart(root, readme string) ([]start, error) {
	install, code := fenced(section(readme, "Install"), "sh"), fenced(section(readme, "Use"), "go")
	if install == "" || code == "" {
		return nil, errors.New("README.md: no block of sh under Install, or of go under Use")
	}
	list := []start{{Title: "Go", Blocks: []block{{"to install", install}, {"attention in Go", code}}, Link: source("docs/quickstart.md"), LinkText: "Ten minutes from nothing to attention in a Go program"}}
	text, err := read(root, bindings)
	if err != nil {
		return nil, err
	}
	for _, g := range guides {
		code := fenced(section(text, g.title), g.language)
		if code == "" {
			return nil, fmt.Errorf("%s: no block of %s under %s", bindings, g.language, g.title)
		}
		list = append(list, start{Title: g.title, Blocks: []block{{"attention in " + g.title, code}}, Link: source(bindings + "#" + strings.ToLower(g.title)), LinkText: "flashkit for " + g.title})
	}
	return list, nil
}

// read returns the text of a file in the repository. Its lines end in \n.
func read(root, file string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(file)))
	return strings.ReplaceAll(string(b), "\r\n", "\n"), err
}

// section returns the text under a heading of the second level.
func section(text, heading string) string {
	_, rest, _ := strings.Cut(text, "\n## "+heading+"\n")
	part, _, _ := strings.Cut(rest, "\n## ")
	return part
}

func fenced(text, language string) string {
	_, rest, _ := strings.Cut(text, "\n```"+language+"\n")
	code, _, _ := strings.Cut(rest, "```")
	return strings.TrimRight(code, "\n")
}

// table returns the first table of a Markdown text as HTML, and the paragraphs before and after it.
func table(text string) (before string, rows template.HTML, after string, err error) {
	var b strings.Builder
	blocks := strings.Split(strings.TrimSpace(text), "\n\n")
	for i, t := range blocks {
		if !strings.HasPrefix(t, "|") {
			continue
		}
		lines := strings.Split(t, "\n")
		if len(lines) < 3 {
			return "", "", "", fmt.Errorf("a table of %d lines: %q", len(lines), t)
		}
		writeRow(&b, "<table><thead>", "th", lines[0], "</thead>\n<tbody>\n")
		for _, line := range lines[2:] {
			writeRow(&b, "", "td", line, "\n")
		}
		b.WriteString("</tbody></table>")
		if i > 0 {
			before = blocks[i-1]
		}
		if i+1 < len(blocks) && !strings.HasPrefix(blocks[i+1], "#") {
			after = blocks[i+1]
		}
		return before, template.HTML(b.String()), after, nil
	}
	return "", "", "", errors.New("there is no table")
}

func writeRow(b *strings.Builder, before, cell, line, after string) {
	b.WriteString(before + "<tr>")
	for _, text := range strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|") {
		fmt.Fprintf(b, "<%s>%s</%s>", cell, inline(strings.TrimSpace(text)), cell)
	}
	b.WriteString("</tr>" + after)
}

var marks = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`), "$1"}, // without the link's target, which is relative to the document
	{regexp.MustCompile("`([^`]*)`"), "<code>$1</code>"},
	{regexp.MustCompile(`\*\*([^*]*)\*\*`), "<b>$1</b>"},
	{regexp.MustCompile(`\*([^*]*)\*`), "<i>$1</i>"},
}

// inline converts a paragraph of Markdown to HTML.
func inline(text string) template.HTML {
	text = html.EscapeString(strings.ReplaceAll(text, "\n", " "))
	for _, m := range marks {
		text = m.pattern.ReplaceAllString(text, m.with)
	}
	return template.HTML(text)
}
