// Command figures draws the figures of docs/design.md and docs/layers.md into a folder:
//
//	go run ./docs/figures docs/figures
//
// The written bytes are the same on every machine.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/flashkit-go/flashkit/internal/outfile"
)

var figures = map[string]func() *drawing{"tile.svg": tile, "memory.svg": memory, "skip.svg": skip, "layers.svg": layers}

// kind recognizes files that begin like the result of drawing.svg, so that no other file is
// replaced.
var kind = outfile.Kind{Name: "a figure", Is: func(begin []byte) bool { return bytes.HasPrefix(begin, []byte(`<svg class="figure" `)) }}

// workers is the GOMAXPROCS for the figures. It is fixed because a kernel's workspace, which a
// figure shows, grows with GOMAXPROCS.
const workers = 8

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: figures FOLDER")
		os.Exit(2)
	}
	runtime.GOMAXPROCS(workers)
	for name, draw := range figures {
		if err := outfile.Write(filepath.Join(os.Args[1], name), kind, draw().svg()); err != nil {
			fmt.Fprintln(os.Stderr, "figures:", err)
			os.Exit(1)
		}
	}
}
