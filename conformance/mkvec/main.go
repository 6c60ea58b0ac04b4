// Mkvec writes the golden vectors and their manifest: go run ./mkvec testdata vectors/manifest.json.
// It first deletes all old vectors in the folder, because cases may have been removed.
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/gzip" // a pinned version, so that the bytes do not depend on Go's

	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/internal/outfile"
	"github.com/flashkit-go/flashkit/safetensors"
)

// kind recognizes a golden vector: the metadata in the file's header begins with a bound.
var kind = outfile.Kind{Name: "a golden vector", Is: func(begin []byte) bool {
	r, err := gzip.NewReader(bytes.NewReader(begin))
	if err != nil {
		return false
	}
	header := make([]byte, 64)
	n, _ := io.ReadFull(r, header)
	return bytes.Contains(header[:n], []byte(`{"__metadata__":{"bound_`))
}}

// manifestKind recognizes a manifest by its first member.
var manifestKind = outfile.Kind{Name: "a manifest of golden vectors", Is: func(begin []byte) bool {
	return bytes.HasPrefix(begin, []byte("{\n \"$schema\": \"schema.json\""))
}}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mkvec:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want two arguments, the folder of the vectors and the manifest's path")
	}
	old, err := filepath.Glob(filepath.Join(args[0], "*"+conformance.VectorSuffix))
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := outfile.Remove(path, kind); err != nil {
			return err
		}
	}
	vectors := map[string]*safetensors.File{}
	for _, c := range slices.Concat(conformance.Grid(), conformance.Traps()) {
		name := c.VectorName()
		if vectors[name] != nil {
			continue // cases of the grid share a vector
		}
		vectors[name] = c.Vector()
		if err := write(filepath.Join(args[0], name+conformance.VectorSuffix), vectors[name]); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return writeManifest(args[1], vectors)
}

func writeManifest(path string, vectors map[string]*safetensors.File) error {
	m, err := conformance.NewManifest(vectors)
	if err != nil {
		return err
	}
	text, err := m.Text()
	if err != nil {
		return err
	}
	return outfile.Write(path, manifestKind, text)
}

func write(path string, f *safetensors.File) error {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := f.Write(w); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return outfile.Write(path, kind, b.Bytes())
}
