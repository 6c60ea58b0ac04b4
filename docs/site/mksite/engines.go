package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// engines are the WebAssembly modules that the page runs. Each has a row in the page's table. The
// Go library embeds the first module. A browser skips modules with instructions that the browser
// does not support.
var engines = []engine{
	{Name: "kernel.wasm", About: "the module that Go embeds", Color: 0, file: "backends/wasm/kernel/kernel.wasm"},
	{Name: "relaxed.wasm", About: "the same source with relaxed SIMD: sums rounded as the browser's processor likes", Color: 2, file: "backends/wasm/kernel/relaxed.wasm"},
}

// An engine is a WebAssembly module whose exports data/flashkit.js can call.
type engine struct {
	Name   string `json:"name"`
	About  string `json:"about"`
	Color  int    `json:"color"` // number of its color in the plot
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
	Wasm   string `json:"wasm"` // the module, compressed by gzip, in base64

	file string // path in the repository
}

func readEngines(root string) ([]engine, error) {
	var list []engine
	for _, e := range engines {
		wasm, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.file)))
		if err != nil {
			return nil, err
		}
		e.Bytes, e.SHA256, e.Wasm = len(wasm), hash(wasm), pack(wasm)
		list = append(list, e)
	}
	return list, nil
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// pack returns b in the format of the page's data: compressed by gzip, in base64.
func pack(b []byte) string {
	var packed bytes.Buffer
	w, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // no error, because the level is valid
	w.Write(b)                                                 // a Buffer's Write never fails
	w.Close()
	return base64.StdEncoding.EncodeToString(packed.Bytes())
}

// packNumbers returns numbers of the given width in bytes, packed by pack. All first bytes come first, then all
// second bytes, and so on, because exponents then compress well.
func packNumbers(b []byte, width int) string {
	planes := make([]byte, 0, len(b))
	for place := range width {
		for i := place; i < len(b); i += width {
			planes = append(planes, b[i])
		}
	}
	return pack(planes)
}

// host returns a script with the function flashkitHost, which returns the exports of
// backends/wasm/js/flashkit.js but load. The page cannot import the file, because browsers load no
// ES modules from a folder. The script has neither comments nor indents.
func host(root string) ([]byte, error) {
	source, err := read(root, "backends/wasm/js/flashkit.js")
	if err != nil {
		return nil, err
	}
	source, _, found := strings.Cut(source, "\n// ---- Loading ----\n")
	if !found {
		return nil, errors.New("flashkit.js has no section Loading")
	}
	var text strings.Builder
	text.WriteString(scriptBegins + "function flashkitHost() {\n\"use strict\";\n")
	var exports []string
	for line := range strings.Lines(source) {
		line = strings.TrimLeft(line, "\t")
		if strings.HasPrefix(line, "//") || line == "\n" {
			continue
		}
		if name := exported.FindStringSubmatch(line); name != nil {
			line, exports = strings.TrimPrefix(line, "export "), append(exports, name[1])
		}
		text.WriteString(line)
	}
	fmt.Fprintf(&text, "return { %s };\n}\n", strings.Join(exports, ", "))
	return []byte(text.String()), nil
}

var exported = regexp.MustCompile(`^export (?:const|class|function) (\w+)`)

// script returns a script that sets a property of the page's object flashkit. The data is in
// scripts, because a page that is opened from a folder can load no other data.
func script(property string, value any) ([]byte, error) {
	var text bytes.Buffer
	fmt.Fprintf(&text, "%sflashkit.%s = ", scriptBegins, property)
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}
