package house

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/flashkit-go/flashkit"

// anything allows all imports in a row.
const anything = "*"

// rooms lists the packages of this module that each folder or file may import. The first matching
// row counts. Imports point to the root.
var rooms = []struct {
	where   string
	imports []string
}{
	{"convert.go", []string{"internal/half"}},
	{".", nil},
	{"internal/matmul", []string{".", "internal/amx", "internal/half", "internal/workers"}},
	{"internal/elements", []string{"internal/half"}},
	{"internal/peertest", []string{".", "internal/nccl", "internal/ringtest", "internal/slow", "ring", "ring/nccl", "ring/peer", "backends/cuda"}},
	{"internal/ringtest", []string{".", "conformance/oracle", "internal/half", "ring"}},
	{"internal/nccl", []string{"internal/sharedlib"}},
	{"internal/cublas", []string{"internal/sharedlib"}},
	{"internal/fastest", []string{"."}},
	{"internal/hostmem", []string{"."}},
	{"internal/house/bits", []string{".", "backends/*"}},
	{"internal/house/prose", nil},
	{"internal/house/regret", []string{".", "dispatch", "internal/bench", "internal/machine", "internal/replay", "internal/terminal"}},
	{"internal/house/sbom", nil},
	{"internal/bench", []string{".", "backends/*", "dispatch", "internal/half", "internal/input", "internal/machine", "internal/terminal"}},
	{"internal/gputest", []string{"backends/cuda"}},
	{"internal/input", []string{".", "backends/cuda", "conformance/oracle", "dispatch", "internal/half", "internal/machine", "internal/npy", "internal/terminal", "safetensors"}},
	{"internal/machine", []string{".", "backends/cuda", "backends/simd", "dispatch", "internal/terminal"}},
	{"internal/ranks", []string{".", "backends/cuda", "dispatch", "internal/bench", "internal/input", "internal/terminal", "ring", "ring/*"}},
	{"internal/replay", []string{".", "dispatch", "internal/bench", "internal/input", "internal/machine", "internal/terminal"}},
	{"internal/report", []string{".", "internal/bench", "internal/input", "internal/machine", "internal/terminal"}},
	{"internal/npy", []string{"internal/foreign"}},
	{"internal/strict", []string{".", "internal/foreign"}},
	{"internal/allocs", []string{"internal/slow"}},
	{"internal/*", nil},
	{"nn", []string{".", "dispatch", "safetensors", "internal/*"}},
	{"nn/encoder", []string{".", "backends/cuda", "nn", "nn/tokenizer", "dispatch", "safetensors", "internal/*"}},
	{"nn/tokenizer/ids", []string{"nn/tokenizer"}},
	{"nn/*", []string{".", "nn", "dispatch", "safetensors", "internal/*"}},
	{"backends/simd", []string{".", "internal/*", "backends/simd/internal/*"}},
	{"backends/simd/internal/*", []string{".", "internal/*"}},
	{"backends/*", []string{".", "internal/*"}},
	{"ring", []string{".", "internal/hostmem", "internal/workers", "internal/half"}},
	{"ring/peer", []string{".", "ring", "backends/cuda"}},
	{"ring/nccl", []string{".", "ring", "ring/peer", "backends/cuda", "internal/nccl"}},
	{"ring/mpi", []string{".", "ring", "internal/hostmem", "internal/sharedlib"}},
	{"ring/*", []string{".", "ring"}},
	{"safetensors", []string{".", "internal/foreign"}},
	{"conformance", []string{".", "conformance/oracle", "safetensors", "internal/*"}},
	{"conformance/judge", []string{"conformance", "internal/outfile", "safetensors"}},
	{"conformance/mkvec", []string{"conformance", "internal/outfile", "safetensors"}},
	{"conformance/mutants", []string{".", "internal/*"}},
	{"conformance/oracle", []string{"."}},
	{"backends/cuda/mkcosts", []string{"internal/outfile"}},
	{"dispatch/default.go", []string{".", "backends/cuda", "backends/simd"}},
	{"dispatch/sandbox.go", []string{".", "backends/wasm"}},
	{"dispatch", []string{".", "internal/fastest", "internal/outfile", "internal/workers"}},
	{"cmd/flashrun", []string{anything}},
	{"bench/peers/instructions", []string{".", "backends/simd"}},
	{"bench/peers/product", []string{".", "backends/simd", "internal/matmul", "internal/outfile"}},
	{"bench/peers/encoders", []string{"nn/encoder"}},
	{"bench/peers/*", []string{".", "dispatch", "safetensors", "internal/outfile"}},
	{"docs/figures", []string{".", "backends/simd", "internal/outfile"}},
	{"docs/mkperformance", []string{"internal/outfile"}},
	{"docs/site/mksite", []string{".", "backends/wasm", "conformance", "internal/half", "internal/outfile", "safetensors"}},
	{"examples/*", []string{anything}},
}

// room returns the allowed imports of a file, and whether it has a row.
func room(file string) (imports []string, ok bool) {
	for _, r := range rooms {
		if r.where == file || matches(r.where, path.Dir(file)) {
			return r.imports, true
		}
	}
	return nil, false
}

func matches(pattern, folder string) bool {
	ok, err := path.Match(pattern, folder)
	return ok && err == nil
}

// goFiles returns the module's Go files. Hidden folders, testdata and modules
// of their own are no part of it.
func goFiles(t *testing.T) []string {
	enter()
	var files []string
	root := os.DirFS(".")
	require.NoError(t, fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !entry.IsDir() {
			if path.Ext(name) == ".go" {
				files = append(files, name)
			}
			return nil
		}
		_, nested := fs.Stat(root, path.Join(name, "go.mod"))
		if name != "." && (nested == nil || strings.ContainsAny(entry.Name()[:1], "._") || entry.Name() == "testdata") {
			return fs.SkipDir
		}
		return nil
	}))
	require.Contains(t, files, "problem.go")
	require.Contains(t, files, "backends/simd/simd.go")
	return files
}

// imports returns the import paths of a file.
func imports(t *testing.T, file string) []string {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	require.NoError(t, err)
	var list []string
	for _, spec := range f.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		require.NoError(t, err)
		list = append(list, name)
	}
	return list
}

func TestImports(t *testing.T) {
	for _, file := range goFiles(t) {
		allowed, ok := room(file)
		if !ok {
			t.Errorf("%s: its folder has no row in the table of rooms; give it a row", file)
			continue
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, name := range imports(t, file) {
			if name != module && !strings.HasPrefix(name, module+"/") {
				continue
			}
			folder := path.Join(".", strings.TrimPrefix(strings.TrimPrefix(name, module), "/"))
			if !mayImport(allowed, folder) {
				t.Errorf("%s must not import %s", file, name)
			}
		}
	}
}

func mayImport(allowed []string, folder string) bool {
	for _, a := range allowed {
		if a == anything || matches(a, folder) {
			return true
		}
	}
	return false
}

// The table would be worth nothing if it let everything through.
func TestImportTable(t *testing.T) {
	for _, c := range []struct {
		file, folder string
		want         bool
	}{
		{"problem.go", "internal/half", false},
		{"internal/npy/npy.go", ".", false},
		{"safetensors/tensor.go", ".", true},
		{"safetensors/tensor.go", "internal/half", false},
		{"backends/simd/simd.go", ".", true},
		{"backends/simd/simd.go", "internal/half", true},
		{"backends/simd/simd.go", "backends/wasm", false},
		{"backends/simd/simd.go", "dispatch", false},
		{"conformance/run.go", "backends/simd", false},
		{"nn/linear.go", "internal/matmul", true},
		{"nn/attention.go", "backends/simd", false},
		{"dispatch/default.go", "backends/cuda", true},
		{"dispatch/dispatch.go", "backends/cuda", false},
		{"cmd/flashrun/main.go", "backends/cuda", true},
	} {
		allowed, ok := room(c.file)
		require.True(t, ok, c.file)
		require.Equal(t, c.want, mayImport(allowed, c.folder), "%s imports %s", c.file, c.folder)
	}
	for _, file := range []string{"util/util.go", "cmd/other/main.go", "backends/simd/deep/deep.go"} {
		_, ok := room(file)
		require.False(t, ok, file)
	}
}

// Stray allocations of the runtime fail a test that measures once. The exceptions count the calls,
// and divide by hundreds of them.
func TestAllocationsAreMeasuredAgain(t *testing.T) {
	once := []string{"internal/allocs/allocs.go", "backends/simd/decode_conduct_test.go", "dispatch/growing_test.go"}
	name := "testing." + "AllocsPerRun("
	for _, file := range goFiles(t) {
		if strings.Contains(read(t, file), name) && !slices.Contains(once, file) {
			t.Errorf("%s calls testing.AllocsPerRun; call allocs.PerRun", file)
		}
	}
}

// A library that computes has no business on the network. The servers are programs.
func TestNoNetwork(t *testing.T) {
	servers := []string{"examples/server", "examples/embed-server", "internal/admission", "docs/site/mksite"}
	for _, file := range goFiles(t) {
		if strings.HasSuffix(file, "_test.go") || slices.Contains(servers, path.Dir(file)) {
			continue
		}
		for _, name := range imports(t, file) {
			if name == "net" || strings.HasPrefix(name, "net/") {
				t.Errorf("%s imports %s", file, name)
			}
		}
	}
}

// The Go code of README.md is examples/minilm, and a part of ExampleDefault, which runs.
func TestReadmeExample(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	examples, err := os.ReadFile("dispatch/example_test.go")
	require.NoError(t, err)
	_, example, found := strings.Cut(string(examples), "\nfunc ExampleDefault() {\n")
	require.True(t, found)
	example, _, _ = strings.Cut(example, "\n}\n")
	require.Contains(t, example, "// Output:", "or it would not run")
	blocks := strings.Split(string(readme), "```go\n")[1:]
	require.Len(t, blocks, 2)
	program, err := os.ReadFile("examples/minilm/main.go")
	require.NoError(t, err)
	code, _, found := strings.Cut(blocks[0], "```")
	require.True(t, found)
	require.Contains(t, string(program), code)
	code, _, found = strings.Cut(blocks[1], "```")
	require.True(t, found)
	require.LessOrEqual(t, strings.Count(code, "\n"), 10)
	require.Contains(t, example, "\t"+strings.ReplaceAll(strings.TrimSuffix(code, "\n"), "\n", "\n\t")+"\n")
}
