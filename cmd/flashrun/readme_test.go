package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// Every command of README.md works: make has the target, Go has the package, and
// flashrun runs it, on any machine.
func TestReadmeCommands(t *testing.T) {
	slow.UnderRace(t)
	t.Setenv("FLASHRUN_HURRY", "1")
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllStringSubmatch(docText(t, "../../README.md"), -1)
	require.GreaterOrEqual(t, len(blocks), 3)
	seen := map[string]int{}
	for _, block := range blocks {
		for line := range strings.Lines(block[1]) {
			line, _, _ = strings.Cut(line, "#")
			words := strings.Fields(line)
			require.Greater(t, len(words), 1, line)
			seen[words[0]]++
			t.Run(strings.Join(words, " "), func(t *testing.T) { readmeCommand(t, words) })
		}
	}
	for _, program := range []string{"go", "make", "flashrun"} {
		require.NotZero(t, seen[program], "a README without %s", program)
	}
}

// README.md's list of features matches the kernels: kernels without features, and features without
// a backward pass.
func TestReadmeFeatures(t *testing.T) {
	_, text, found := strings.Cut(docText(t, "../../README.md"), "- **Features**: ")
	require.True(t, found)
	text, _, _ = strings.Cut(text, "\n- **")
	none := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+/\\w+)` \\|[^|]*\\|[^|]*\\|[^|]*\\| *([^|]*?) *\\|").FindAllStringSubmatch(docText(t, "../../docs/kernels.md"), -1) {
		none[row[1]] = row[2] == ""
	}
	require.Greater(t, len(none), 30)
	for kernel, lacks := range none {
		require.Equal(t, lacks, strings.Contains(text, "`"+kernel+"`"), kernel)
	}
	require.Equal(t, flashkit.FeaturePage|flashkit.FeatureCarry|flashkit.FeatureMixed|flashkit.FeatureInt8|flashkit.FeatureRowMax|flashkit.FeatureKeyMass, flashkit.ForwardFeatures)
	require.Contains(t, strings.Join(strings.Fields(text), " "), "Paged caches, `Carry` and K and V of another type than Q have no backward pass")
}

// Messages quoted in docs/limits.md are in the sources, except for numbers and names.
func TestTroubleshootingQuotes(t *testing.T) {
	var sources strings.Builder
	for _, pattern := range []string{"../../*.go", "../../dispatch/*.go", "../../backends/*/*.go"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				ast.Inspect(parsed(t, file), func(n ast.Node) bool {
					if x, ok := n.(*ast.BasicLit); ok && x.Kind == token.STRING {
						sources.WriteString(x.Value + "\n")
					}
					return true
				})
			}
		}
	}
	text, quotes := docText(t, "../../docs/limits.md"), []string{}
	for _, m := range regexp.MustCompile("(?m)^(?:- \\*(.*?)\\*: |\\| `flashkit: [^=`]* = [^:`]*: ([^`]*)`)").FindAllStringSubmatch(text, -1) {
		quotes = append(quotes, m[1]+m[2])
	}
	require.GreaterOrEqual(t, len(quotes), 12)
	variable := regexp.MustCompile(`\.\.\.|\[[^]]*\]|\b[-+.\de]*\d[-+.\de]*\b|\bbf16\b|\bQ$`)
	for _, quote := range quotes {
		for _, part := range variable.Split(quote, -1) {
			require.True(t, strings.Contains(sources.String(), strings.TrimSpace(part)), "%q of %q is in no source", part, quote)
		}
	}
}

func parsed(t *testing.T, file string) *ast.File {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	require.NoError(t, err)
	return f
}

func readmeCommand(t *testing.T, words []string) {
	switch words[0] {
	case "make":
		require.Len(t, words, 2)
		name := regexp.QuoteMeta(words[1]) // a target, or one passed on to a folder's Makefile
		require.Regexp(t, `(?m)^(`+name+`:.*## |[a-z0-9/]+ *:= (.* )?`+name+`( |$))`, docText(t, "../../Makefile"))
	case "go":
		require.Len(t, words, 3)
		folder, ok := packageFolder(words[2])
		require.True(t, ok, "not a package of this module")
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		switch words[1] {
		case "get":
		case "install":
			require.Regexp(t, `(?m)^package main$`, docText(t, filepath.Join(folder, "main.go")))
		default:
			t.Fatal("teach this test what the command does")
		}
	case "flashrun":
		if os.Getenv("FLASHKIT_EMULATOR") != "" && words[1] == "bench" {
			t.Skip("it measures long rows, for minutes under an emulator")
		}
		code, stdout, stderr := flashrun(t, hurried(words)[1:]...)
		require.Equal(t, exitOK, code, stderr)
		require.NotEmpty(t, stdout)
	default:
		t.Fatal("teach this test what the command does")
	}
}

// packageFolder returns the folder of a package of the module.
func packageFolder(name string) (folder string, ok bool) {
	const module = "github.com/flashkit-go/flashkit"
	name, _, _ = strings.Cut(name, "@")
	rest, ok := strings.CutPrefix(name, module)
	if !ok || rest != "" && rest[0] != '/' {
		return "", false
	}
	folder = filepath.Join("../..", filepath.FromSlash(rest))
	info, err := os.Stat(folder)
	return folder, err == nil && info.IsDir()
}
