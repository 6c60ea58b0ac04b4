package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"regexp"
	"strings"
)

//go:embed page.tmpl
var pageText string

var pageTemplate = template.Must(template.New("page").Parse(pageText))

// repository is the beginning of links to files. These links are absolute, because the page may be
// opened outside the repository.
const repository = "https://github.com/flashkit-go/flashkit"

// ortVersion is the version of onnxruntime-web next to the page. The command `make site-ort`
// installs it there. A test compares it with the Makefile of docs/site.
const ortVersion = "1.30.0"

type page struct {
	Lead, What string
	ORT        string
	Module     string // size in bytes of the WebAssembly module
	Sample     struct {
		Model                string
		Heads                []int
		Tokens, Width, Bytes int
	}
	Windows    []int
	Softcaps   []float32
	Vectors    *vectors
	Quickstart []start
	Results    []result
	Links      []link
	Provenance string
	Data       []string // files of the scripts with the data
}

type link struct{ Text, URL string }

// build returns the generated files, by their paths in the page's folder.
func build(ctx context.Context, root string) (map[string][]byte, error) {
	list, err := readEngines(root)
	if err != nil {
		return nil, err
	}
	s, err := readSample(ctx, root)
	if err != nil {
		return nil, err
	}
	v, err := readVectors(root)
	if err != nil {
		return nil, err
	}
	p := page{ORT: ortVersion, Module: thousands(list[0].Bytes), Vectors: v, Provenance: source("internal/input/sample/PROVENANCE.md"), Data: []string{"engines.js", "sample.js", "vectors.js"}}
	p.Windows, p.Softcaps = windows[1:], softcaps[1:]
	p.Sample.Model, p.Sample.Heads, p.Sample.Tokens, p.Sample.Width = s.Model, s.Heads, len(s.Tokens), 8*len(s.Tokens)
	if err := p.readTexts(root); err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for name, value := range map[string]any{"engines": list, "sample": s, "vectors": v} {
		if files["data/"+name+".js"], err = script(name, value); err != nil {
			return nil, err
		}
	}
	if files["data/flashkit.js"], err = host(root); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := pageTemplate.Execute(&text, p); err != nil {
		return nil, err
	}
	files["index.html"] = text.Bytes()
	return files, nil
}

func (p *page) readTexts(root string) (err error) {
	readme, err := read(root, "README.md")
	if err != nil {
		return err
	}
	lead, what, ok := strings.Cut(paragraph(readme, 1), "** ")
	if !ok {
		return fmt.Errorf("README.md: its first paragraph begins with no bold sentence")
	}
	p.Lead, p.What = strings.TrimPrefix(lead, "**"), what
	if p.Quickstart, err = readQuickstart(root, readme); err != nil {
		return err
	}
	if p.Results, err = readResults(root, readme); err != nil {
		return err
	}
	for _, l := range []link{
		{"Source", ""}, {"Quickstart", "docs/quickstart.md"}, {"The library", "docs/library.md"}, {"The command flashrun", "docs/flashrun.md"},
		{"The mathematics and the design", "docs/design.md"}, {"The sandbox: what runs on this page", "docs/bindings.md#browser-and-sandbox"}, {"The module's source", "backends/wasm/kernel/kernel.c"},
		{"The golden vectors, for any language", "conformance/testdata/README.md"}, {"Performance", "docs/performance.md"}, {"Limits", "docs/limits.md"},
	} {
		p.Links = append(p.Links, link{l.Text, source(l.URL)})
	}
	return nil
}

// source returns the URL of a file in the repository, or of the repository if file is "".
func source(file string) string {
	if file == "" {
		return repository
	}
	return repository + "/blob/main/" + file
}

// paragraph returns paragraph n of a Markdown text as one line. Number 0 is the heading.
func paragraph(text string, n int) string {
	all := strings.Split(text, "\n\n")
	if n >= len(all) {
		return ""
	}
	return strings.ReplaceAll(strings.TrimSpace(all[n]), "\n", " ")
}

// thousands formats 31122 as 31,122.
func thousands(n int) string {
	return regexp.MustCompile(`(\d)(\d{3})$`).ReplaceAllString(fmt.Sprint(n), "$1,$2")
}
