// Command mksite makes the generated files of the page in docs/site, and serves the page:
//
//	go run ./docs/site/mksite .
//	go run ./docs/site/mksite -serve localhost:8400 .
//
// The argument is the root of the repository. The written bytes are the same on every machine.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/flashkit-go/flashkit/internal/outfile"
)

const folder = "docs/site"

var kind = outfile.Kind{Name: "made by make site", Is: func(begin []byte) bool {
	return bytes.HasPrefix(begin, []byte(scriptBegins)) || bytes.Contains(begin, []byte(pageTitle))
}}

// Marks by which the variable kind recognizes generated files. The function script writes the first
// mark, and page.tmpl has the second.
const (
	scriptBegins = "// Made by make site.\n"
	pageTitle    = "<title>flashkit: attention in this browser</title>"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	switch err := run(ctx, os.Args[1:], os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "mksite:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, w io.Writer) error {
	flags := flag.NewFlagSet("mksite", flag.ContinueOnError)
	flags.SetOutput(w)
	addr := flags.String("serve", "", "serve the page on this loopback `address`, instead of making its files")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return fmt.Errorf("%d arguments, want the root of the repository", flags.NArg())
	}
	root := flags.Arg(0)
	if *addr != "" {
		return serve(ctx, *addr, filepath.Join(root, folder), w)
	}
	files, err := build(ctx, root)
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := outfile.Write(filepath.Join(root, folder, filepath.FromSlash(name)), kind, text); err != nil {
			return err
		}
	}
	return nil
}
