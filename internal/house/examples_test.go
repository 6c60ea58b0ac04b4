package house

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A shelf is a package in go doc: its exported names, such as ProblemOf and Band.Shift.
type shelf struct {
	types  map[string]bool // whether a type has an example
	calls  map[string]bool // functions and methods, and whether they have an example
	silent []string        // names without a comment, or a function's that does not begin with the name
	unread []string        // names with an example that is compiled only
}

// readShelf parses all files of a folder, whatever their build constraints.
func readShelf(t *testing.T, folder string) *shelf {
	enter()
	set, files := token.NewFileSet(), []*ast.File(nil)
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, e := range entries {
		if path.Ext(e.Name()) == ".go" {
			f, err := parser.ParseFile(set, path.Join(folder, e.Name()), nil, parser.ParseComments)
			require.NoError(t, err)
			files = append(files, f)
		}
	}
	p, err := doc.NewFromFiles(set, files, path.Join(module, folder))
	require.NoError(t, err)
	s := &shelf{types: map[string]bool{}, calls: map[string]bool{}}
	s.note("package", p.Doc)
	s.values("", p.Consts, p.Vars)
	s.functions("", p.Funcs)
	s.examples("package", p.Examples)
	for _, x := range p.Types {
		s.note(x.Name, x.Doc)
		s.values(x.Name, x.Consts, x.Vars)
		s.functions("", x.Funcs)
		s.functions(x.Name+".", x.Methods)
		s.types[x.Name] = len(x.Examples) > 0
		s.examples(x.Name, x.Examples)
		for _, spec := range x.Decl.Specs {
			s.fields(x.Name, spec.(*ast.TypeSpec).Type)
		}
	}
	return s
}

// note records a name without any of its comments.
func (s *shelf) note(name string, comments ...string) {
	if strings.TrimSpace(strings.Join(comments, "")) == "" {
		s.silent = append(s.silent, name)
	}
}

func (s *shelf) functions(owner string, list []*doc.Func) {
	for _, f := range list {
		if !strings.HasPrefix(f.Doc, f.Name+" ") {
			s.silent = append(s.silent, owner+f.Name)
		}
		s.calls[owner+f.Name] = len(f.Examples) > 0
		s.examples(owner+f.Name, f.Examples)
	}
}

func (s *shelf) examples(name string, list []*doc.Example) {
	for _, x := range list {
		if x.Output == "" && !x.EmptyOutput {
			s.unread = append(s.unread, name)
		}
	}
}

// values notes constants and variables. The comment of a group counts for its members.
func (s *shelf) values(owner string, groups ...[]*doc.Value) {
	for _, g := range slices.Concat(groups...) {
		for _, spec := range g.Decl.Specs {
			v := spec.(*ast.ValueSpec)
			for _, n := range v.Names {
				if n.IsExported() {
					s.note(n.Name, g.Doc, v.Doc.Text(), v.Comment.Text())
				}
			}
		}
	}
}

// fields notes the exported fields of a struct and the methods of an interface.
func (s *shelf) fields(owner string, x ast.Expr) {
	var list *ast.FieldList
	switch x := x.(type) {
	case *ast.StructType:
		list = x.Fields
	case *ast.InterfaceType:
		list = x.Methods
	default:
		return
	}
	for _, f := range list.List {
		for _, n := range f.Names { // an embedded type has its own comment
			if n.IsExported() {
				s.note(owner+"."+n.Name, f.Doc.Text(), f.Comment.Text())
			}
		}
	}
}

// TestExamples requires a comment of every exported name, and an example of every exported function
// and method. shelves has the exceptions.
func TestExamples(t *testing.T) {
	for folder, x := range shelves {
		s := readShelf(t, folder)
		for _, name := range s.silent {
			t.Errorf("%s: %s has no comment", folder, name)
		}
		for name, has := range s.calls {
			if owner, _, _ := strings.Cut(name, "."); x.byType && s.types[owner] {
				has, s.calls[name] = true, true
			}
			if !has && !x.excused(name) {
				t.Errorf("%s: %s has no example", folder, name)
			}
		}
		for _, name := range x.internal {
			if has, ok := s.calls[name]; has || !ok {
				t.Errorf("%s: %s has an example now, or is gone: strike it off the list", folder, name)
			}
		}
		for _, name := range s.unread {
			if !slices.Contains(x.withoutOutput, name) {
				t.Errorf("%s: the example of %s has no output", folder, name)
			}
		}
		for _, name := range x.withoutOutput {
			if !slices.Contains(s.unread, name) {
				t.Errorf("%s: the example of %s has an output now, or is gone: strike it off the list", folder, name)
			}
		}
	}
}

// excused reports whether a function or method needs no example.
func (e *exceptions) excused(name string) bool {
	_, method, ok := strings.Cut(name, ".")
	return ok && slices.Contains(implementations, method) || slices.Contains(e.internal, name)
}

// The test would be worth nothing if it saw nothing.
func TestShelf(t *testing.T) {
	s := readShelf(t, "internal/house/testdata/shelf")
	require.Equal(t, map[string]bool{"New": true, "Part.Shown": true, "Part.Hidden": false, "Part.Wrong": false}, s.calls)
	require.ElementsMatch(t, []string{"package", "Part.B", "Part.Hidden", "Part.Wrong", "Doer.Do", "Loose"}, s.silent)
	require.Equal(t, []string{"Part.Shown"}, s.unread)
}
