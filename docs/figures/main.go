// Command figures draws the figures of docs/algorithm.md and docs/layers.md into a folder:
//
//	go run ./docs/figures docs/figures
//
// They are the same bytes on every machine.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// figures are the files, and what draws them.
var figures = map[string]func() *drawing{"tile.svg": tile, "memory.svg": memory, "skip.svg": skip, "layers.svg": layers}

// workers is how many the figures assume: the workspace of a kernel grows with them.
const workers = 8

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: figures FOLDER")
		os.Exit(2)
	}
	runtime.GOMAXPROCS(workers)
	for name, draw := range figures {
		if err := os.WriteFile(filepath.Join(os.Args[1], name), draw().svg(), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "figures:", err)
			os.Exit(1)
		}
	}
}
