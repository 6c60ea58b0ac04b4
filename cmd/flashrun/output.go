package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/outfile"
)

// createOutput opens the file of --out, before the computation. It returns an error if the path is
// an input file or cannot be written.
func createOutput(path string, kind outfile.Kind, inputs []string) (*outfile.File, error) {
	if path == input.Stdin {
		return nil, errors.New("--out -: must name a file, as the report goes to the standard output; ./- is a file of that name")
	}
	out, err := os.Stat(path)
	for _, arg := range inputs {
		_, in := input.SplitArg(arg)
		if info, failed := os.Stat(in); err == nil && failed == nil && os.SameFile(info, out) {
			return nil, fmt.Errorf("--out %s: would overwrite the input %s", path, in)
		}
	}
	file, err := outfile.Create(path, kind)
	if err != nil {
		return nil, fmt.Errorf("--out %w", err)
	}
	return file, nil
}

func commit(file *outfile.File, write func(io.Writer) error) error {
	if err := file.Commit(write); err != nil {
		return fmt.Errorf("--out %w", err)
	}
	return nil
}

// The kinds of output files, except profiles. Is recognizes a file's kind by the file's beginning,
// so that --out never replaces a file of another kind.
var (
	outputKind  = outfile.Kind{Name: "an output of flashrun run", Is: isOutput}
	resultsKind = outfile.Kind{Name: "a result of flashrun bench", Is: isResults}
	pageKind    = outfile.Kind{Name: "a page of flashrun report", Is: containing(`<!DOCTYPE html>`, `<meta name="generator" content="flashrun report">`)}
	imageKind   = outfile.Kind{Name: "an image of flashrun report", Is: containing(`<svg `, `<metadata>Made by flashrun report.</metadata>`)}
)

// isOutput reports whether a safetensors file comes from flashrun run: its metadata has only keys
// that input.Work.File writes.
func isOutput(begin []byte) bool {
	const length = 8 // size of the header's length field
	_, text, ok := bytes.Cut(begin[min(length, len(begin)):], []byte(`{"__metadata__":`))
	var metadata map[string]string
	if !ok || json.NewDecoder(bytes.NewReader(text)).Decode(&metadata) != nil {
		return false
	}
	for key := range metadata {
		if !slices.Contains([]string{"problem", "kernel", "layout", "forward_kernel"}, key) {
			return false
		}
	}
	_, err := flashkit.ParseProblem(metadata["problem"])
	return err == nil && metadata["kernel"] != ""
}

// isResults reports whether a file is a JSON object that begins with the members of bench.Results.
func isResults(begin []byte) bool {
	d := json.NewDecoder(bytes.NewReader(begin))
	for _, want := range []json.Token{json.Delim('{'), "format", nil, "started"} {
		if got, err := d.Token(); err != nil || want != nil && got != want {
			return false
		}
	}
	return true
}

// containing returns a function that reports whether a file begins with first and contains mark.
func containing(first, mark string) func([]byte) bool {
	return func(begin []byte) bool {
		return bytes.HasPrefix(begin, []byte(first)) && bytes.Contains(begin, []byte(mark))
	}
}
