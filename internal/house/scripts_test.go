package house

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// A code span, or a line of an indented block.
	codeText = regexp.MustCompile("(?m)`([^`\n]+)`|^    (.+)$")
	// A script with its folder, the interpreter before it, and the rest of the command.
	scriptCall = regexp.MustCompile(`(?:\b(node|sh|bash|python3?) +)?((?:\w[\w.-]*/)+[\w-]+\.(sh|py|mjs))\b((?: +[^|;&#]+)?)`)
	option     = regexp.MustCompile(`--[a-z][a-z-]*`)
)

var interpreters = map[string]string{"node": "mjs", "sh": "sh", "bash": "sh", "python": "py", "python3": "py"}

// Each script that a document names exists, runs under the interpreter of the command, and has the command's
// options. TestGuides runs commands with a prompt. Tests of package wasm run the commands that audit its module.
func TestNamedScripts(t *testing.T) {
	found := 0
	for _, file := range tracked(t, "*.md") {
		for _, code := range codeText.FindAllStringSubmatch(read(t, file), -1) {
			for _, m := range scriptCall.FindAllStringSubmatch(code[1]+code[2], -1) {
				interpreter, name, kind, rest := m[1], strings.TrimPrefix(m[2], "flashkit/"), m[3], m[4] // flashkit/ stands for the repository
				if strings.HasPrefix(name, "bin/") || strings.Contains(code[0], "://") {
					continue // built, or an address
				}
				text, err := os.ReadFile(name)
				if err != nil {
					text, err = os.ReadFile(path.Join(path.Dir(file), name))
				}
				require.NoError(t, err, "%s: %q", file, code[0])
				found++
				if interpreter != "" {
					require.Equal(t, interpreters[interpreter], kind, "%s: %q", file, code[0])
				}
				for _, o := range option.FindAllString(rest, -1) {
					require.Contains(t, string(text), o, "%s: %q", file, code[0])
				}
			}
		}
	}
	require.Greater(t, found, 15)
}

// A page's go get names the packages that the page's programs import: a go get of the root alone
// adds no sums of the modules that other packages need, so programs that import them are not built.
func TestGoGetNamesImports(t *testing.T) {
	get := regexp.MustCompile(`go get (` + regexp.QuoteMeta(module) + `\S*)`)
	use := regexp.MustCompile(`(?m)^\s*(?:import )?"(` + regexp.QuoteMeta(module) + `/\S+)"$`)
	found := 0
	for _, file := range tracked(t, "*.md") {
		text, named := read(t, file), []string(nil)
		for _, m := range get.FindAllStringSubmatch(text, -1) {
			named = append(named, m[1])
			require.NotEqual(t, module, m[1], "%s: the root has no kernels", file)
			require.DirExists(t, strings.TrimPrefix(m[1], module+"/"), file)
		}
		for _, m := range use.FindAllStringSubmatch(text, -1) {
			if named != nil {
				require.Contains(t, named, m[1], file)
				found++
			}
		}
	}
	require.GreaterOrEqual(t, found, 2)
}
