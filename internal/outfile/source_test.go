package outfile

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// writers are the functions of package os that make, fill, move, cut or remove a file.
var writers = map[string]bool{"Create": true, "CreateTemp": true, "WriteFile": true, "OpenFile": true, "Rename": true, "Truncate": true, "Link": true, "Symlink": true,
	"OpenRoot": true, "CopyFS": true, "Remove": true, "RemoveAll": true}

// Only this package writes files, so nothing in the repository replaces foreign files. Exceptions
// are tests, the program that writes assembly, and a runner of the suite: nested modules that only the
// Makefile runs. The folders bin and dist have copies of sources.
func TestNothingElseWrites(t *testing.T) {
	root, files, found := os.DirFS("../.."), 0, map[string]bool{}
	require.NoError(t, fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name != "." && strings.HasPrefix(entry.Name(), ".") || name == "backends/simd/_asm" || name == "conformance/vectors/runners" || name == "bin" || name == "dist" || entry.Name() == "testdata"):
			return fs.SkipDir
		case path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		files++
		text, err := fs.ReadFile(root, name)
		require.NoError(t, err)
		for _, call := range calls(t, name, text) {
			found[path.Dir(name)] = true
			if path.Dir(name) != "internal/outfile" {
				t.Errorf("%s uses %s: write files with internal/outfile", name, call)
			}
		}
		return nil
	}))
	require.Greater(t, files, 400)
	require.True(t, found["internal/outfile"], "the test finds what it looks for")
}

// calls returns the functions of writers that a file uses, under whatever name it imports os.
// Functions of package syscall that open or move files are found too.
func calls(t *testing.T, name string, text []byte) (list []string) {
	file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
	require.NoError(t, err)
	imported := map[string]string{}
	for _, spec := range file.Imports {
		of := strings.Trim(spec.Path.Value, `"`)
		as := path.Base(of)
		if spec.Name != nil {
			as = spec.Name.Name
		}
		imported[as] = of
	}
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, ok := s.X.(*ast.Ident)
		if ok && (imported[x.Name] == "os" && writers[s.Sel.Name] || imported[x.Name] == "io/ioutil" ||
			imported[x.Name] == "syscall" && (s.Sel.Name == "Open" || s.Sel.Name == "Creat" || s.Sel.Name == "Rename")) {
			list = append(list, imported[x.Name]+"."+s.Sel.Name)
		}
		return true
	})
	return list
}

func TestCalls(t *testing.T) {
	for text, want := range map[string][]string{
		`import "os"; var _ = os.WriteFile`:                    {"os.WriteFile"},
		`import files "os"; func f() { files.Create("x") }`:    {"os.Create"},
		`import "os"; func f() { os.Open("x"); os.Stat("y") }`: nil,
		`import "syscall"; var _ = syscall.Rename`:             {"syscall.Rename"},
	} {
		require.Equal(t, want, calls(t, "x.go", []byte("package x; "+text)), text)
	}
}
