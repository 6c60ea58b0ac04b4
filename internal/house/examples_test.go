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

// A shelf is what go doc shows of a package: its exported names, by their path such as Band.Shift.
type shelf struct {
	calls   map[string]bool // functions and methods: has an example whose output is compared
	silent  []string        // names without a comment of their own or of their group
	unread  []string        // examples that are compiled only
	pkgText string
}

// readShelf parses all files of a folder, whatever their build constraints.
func readShelf(t *testing.T, folder string) *shelf {
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
	s := &shelf{calls: map[string]bool{}, pkgText: p.Doc}
	s.values("", p.Consts, p.Vars)
	s.functions("", p.Funcs)
	s.examples("package", p.Examples)
	for _, x := range p.Types {
		s.note(x.Name, x.Doc)
		s.values(x.Name, x.Consts, x.Vars)
		s.functions("", x.Funcs)
		s.functions(x.Name+".", x.Methods)
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
		s.note(owner+f.Name, f.Doc)
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
