// Mkvec writes the golden vectors: go run ./conformance/mkvec conformance/testdata.
// It deletes the old ones first, so that none is left behind.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/flashkit-go/flashkit/conformance"
)

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
	old, err := filepath.Glob(filepath.Join(args[0], "*.safetensors"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	for _, c := range slices.Concat(conformance.Grid(), conformance.Traps()) {
		var b bytes.Buffer
		if err := c.Vector().Write(&b); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		if err := os.WriteFile(filepath.Join(args[0], c.Name+".safetensors"), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}
