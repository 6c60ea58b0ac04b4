package main

import (
	"embed"
	"path"
	"strings"

	"github.com/flashkit-go/flashkit/internal/input"
)

// builtin holds the traces of bench --regret=live, by their names.
//
//go:embed traces/*.trace
var builtin embed.FS

// builtinTraces is what --trace calls all of them.
const builtinTraces = "builtin"

// builtinNames returns the names in order.
func builtinNames() (list []string) {
	files, _ := builtin.ReadDir("traces") // it is embedded
	for _, f := range files {
		list = append(list, strings.TrimSuffix(f.Name(), ".trace"))
	}
	return list
}

// readTrace reads a built-in trace or a file.
func readTrace(name string) (*callTrace, error) {
	if text, err := builtin.ReadFile(path.Join("traces", name+".trace")); err == nil {
		return parseTrace(name, string(text))
	}
	text, err := input.ReadWhole(name)
	if err != nil {
		return nil, err
	}
	return parseTrace(name, string(text))
}
