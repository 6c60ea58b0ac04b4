// Sbom prints the software bill of materials of Go programs in CycloneDX format:
//
//	go run ./internal/house/sbom TIME PROGRAM...
//
// It lists Go and the modules that the Go tool recorded in the programs. TIME is the time of the
// document in RFC 3339.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

type document struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"`
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
}

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("want a time and programs")
	}
	d := document{Format: "CycloneDX", Spec: "1.5", Version: 1, Metadata: metadata{Timestamp: args[0]}}
	parts := map[string]component{}
	for _, program := range args[1:] {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return fmt.Errorf("%s: %w", program, err)
		}
		main := newComponent("application", info.Main.Path, info.Main.Version)
		if d.Metadata.Component.Ref != "" && d.Metadata.Component != main {
			return fmt.Errorf("%s is of %s, the programs before it of %s", program, main.Ref, d.Metadata.Component.Ref)
		}
		d.Metadata.Component = main
		std := newComponent("library", "std", strings.TrimPrefix(info.GoVersion, "go"))
		parts[std.Ref] = std
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			c := newComponent("library", m.Path, m.Version)
			parts[c.Ref] = c
		}
	}
	for _, ref := range slices.Sorted(maps.Keys(parts)) {
		d.Components = append(d.Components, parts[ref])
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(d)
}

func newComponent(kind, path, version string) component {
	purl := "pkg:golang/" + path + "@" + version
	return component{kind, purl, path, version, purl}
}
