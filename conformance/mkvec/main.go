// Mkvec writes the golden vectors: go run ./conformance/mkvec conformance/testdata. It first
// deletes all old vectors in the folder, because cases may have been removed.
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

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mkvec:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want one argument, the folder to write to")
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
	for _, c := range slices.Concat(conformance.Grid(), conformance.Traps()) {
		path := filepath.Join(args[0], c.VectorName()+conformance.VectorSuffix)
		if _, err := os.Stat(path); err == nil {
			continue // cases of the grid share a vector
		}
		if err := write(path, c); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

func write(path string, c conformance.Case) error {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := c.Vector().Write(w); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return outfile.Write(path, kind, b.Bytes())
}
