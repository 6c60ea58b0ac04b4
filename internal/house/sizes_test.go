package house

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The limits of hand-written files and functions, in lines. Tests are exempt.
const (
	goFileLines = 400
	goFuncLines = 60
	cFileLines  = 600
	cFuncLines  = 120

	routineLines = 2000 // of assembly, which programs write
)

// longFuncs are the offenders: the list may only shrink, and so may the numbers.
var longFuncs = map[string]int{
	"backends/cuda/kernels/bwd_f32.cu: gradients":      242,
	"backends/cuda/kernels/bwd_wide.cuh: compute_wide": 168,
	"backends/cuda/kernels/decode_sm80.cu: decode":     168,
}

// nestedFiles returns the Go files of the modules in underscored folders, which write the
// assembly.
func nestedFiles(t *testing.T) (files []string) {
	for _, pattern := range []string{"backends/simd/_asm/*.go", "backends/simd/_asm/*/*.go"} {
		list, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, list)
		files = append(files, list...)
	}
	return files
}

// cFiles returns the C and CUDA files.
func cFiles(t *testing.T) []string {
	return files(t, "backends/cuda/kernels/fwd_sm90.cu", ".c", ".h", ".cu", ".cuh")
}

// files returns the files with one of the given extensions, among them known.
func files(t *testing.T, known string, extensions ...string) (files []string) {
	enter()
	require.NoError(t, fs.WalkDir(os.DirFS("."), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && name != "." && (entry.Name()[0] == '.' || entry.Name() == "bin" || entry.Name() == "dist") {
			return fs.SkipDir
		}
		if slices.Contains(extensions, path.Ext(name)) {
			files = append(files, name)
		}
		return nil
	}))
	require.Contains(t, files, known)
	return files
}

// isGenerated reports whether a comment before the first declaration marks the text as generated.
func isGenerated(text []byte) bool {
	head, _, _ := bytes.Cut(text, []byte("\npackage "))
	return regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`).Match(head)
}

// fits checks a number of lines against its limit and its entry in the list of offenders.
func fits(t *testing.T, name string, lines, limit int, offenders map[string]int) {
	known, isKnown := offenders[name]
	switch {
	case isKnown && lines <= limit:
		t.Errorf("%s has %d lines now: strike it off the list", name, lines)
	case isKnown && lines < known:
		t.Errorf("%s has %d lines now: write them into the list in place of %d", name, lines, known)
	case isKnown && lines > known:
		t.Errorf("%s has %d lines; it had %d, and %d fit", name, lines, known, limit)
	case !isKnown && lines > limit:
		t.Errorf("%s has %d lines; %d fit", name, lines, limit)
	}
}

func TestSizes(t *testing.T) {
	seen := map[string]bool{}
	check := func(file string, text []byte, fileLines, funcLines int, funcs map[string]int) {
		fits(t, file, bytes.Count(text, []byte("\n")), fileLines, nil)
		for name, lines := range funcs {
			name = file + ": " + name
			fits(t, name, lines, funcLines, longFuncs)
			seen[name] = true
		}
	}
	for _, file := range append(goFiles(t), nestedFiles(t)...) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		if !strings.HasSuffix(file, "_test.go") && !isGenerated(text) {
			check(file, text, goFileLines, goFuncLines, goFunctions(t, file, text))
		}
	}
	for _, file := range cFiles(t) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		check(file, text, cFileLines, cFuncLines, cFunctions(string(text)))
	}
	for _, file := range files(t, "backends/simd/avx512_attend_amd64.s", ".s") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for name, lines := range routines(string(text)) {
			fits(t, file+": "+name, lines, routineLines, nil)
		}
	}
	for name := range longFuncs {
		require.True(t, seen[name], "%s is gone: strike it off the list", name)
	}
}

// goFunctions returns the lines of each function of a Go file.
func goFunctions(t *testing.T, file string, text []byte) map[string]int {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	require.NoError(t, err)
	lines := map[string]int{}
	for _, d := range f.Decls {
		if f, ok := d.(*ast.FuncDecl); ok {
			lines[f.Name.Name] = max(lines[f.Name.Name], set.Position(f.End()).Line-set.Position(f.Pos()).Line+1)
		}
	}
	return lines
}

var (
	cNoise     = regexp.MustCompile(`(?s)//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+'|(?m:^[ \t]*#(?:[^\n]*\\\n)*[^\n]*)`)
	cContainer = regexp.MustCompile(`^\s*(?:template\s*<[^{]*>\s*)?(?:extern\b|namespace\b|(?:typedef\s+)?(?:struct|class|union|enum)\b[^()]*$)`)
	cName      = regexp.MustCompile(`\b([A-Za-z]\w*)\s*\(`)
)

// cFunctions returns the line counts of the functions of a C or CUDA text, from opening to closing
// brace. Namespaces and types may contain functions.
func cFunctions(text string) map[string]int {
	text = cNoise.ReplaceAllStringFunc(text, func(s string) string { return strings.Repeat("\n", strings.Count(s, "\n")) })
	lines := map[string]int{}
	line, depth, inside, from, name, head := 1, 0, 0, 0, "", 0
	for i, c := range text {
		switch c {
		case '\n':
			line++
		case '{':
			before := text[head:i]
			if m := cName.FindStringSubmatch(before); inside == 0 && m != nil && !cContainer.MatchString(before) {
				inside, from, name = depth+1, line, m[1]
			}
			depth++
			head = i + 1
		case '}':
			if depth == inside && inside > 0 {
				lines[name], inside = max(lines[name], line-from+1), 0
			}
			depth--
			head = i + 1
		case ';':
			head = i + 1
		}
	}
	return lines
}

// The rules would be worth nothing if they saw nothing.
func TestFunctionsOfC(t *testing.T) {
	require.Equal(t, map[string]int{"a": 3, "b": 1, "kernel": 4, "method": 2, "outer": 3}, cFunctions(`
// int no(void) {
#define MACRO(x) { x; \
	} }
static int a(const char *s) {
	return '{' + s["}{"[0]]; /* } */
}
struct S { int n; };
int b(void) { return 1; }
namespace { extern "C" {
template <int N, class T>
__global__ void __launch_bounds__(N) kernel(T x) {
	auto f = [&](int i) {
		return i; };
}
struct T {
	int m = f(1);
	void method() const {
	}
};
} }
void outer(void (*f)(int)) {
	if (f) { f(1); }
}
`))
}

// routines returns the lines of each routine of an assembly file.
func routines(text string) map[string]int {
	lines, name := map[string]int{}, ""
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "TEXT "); ok {
			name, _, _ = strings.Cut(rest, "(")
		}
		lines[name]++
	}
	delete(lines, "")
	return lines
}
