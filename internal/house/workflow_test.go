package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A workflow pins actions by commit and uses existing targets of the Makefile.
func TestWorkflows(t *testing.T) {
	targets := targets(t)
	files, err := filepath.Glob(".github/workflows/*.yml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	pinned := regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	target := regexp.MustCompile(`^[a-z-]+$`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			line = strings.TrimPrefix(strings.TrimSpace(line), "- ")
			if action, ok := strings.CutPrefix(line, "uses: "); ok {
				require.Regexp(t, pinned, action, file)
			}
			command, ok := strings.CutPrefix(strings.TrimPrefix(line, "run: "), "make ")
			for _, word := range strings.Fields(command) {
				if ok && target.MatchString(word) {
					require.Contains(t, targets, word, "%s calls make %s", file, word)
				} else {
					break // a variable, or its value
				}
			}
		}
	}
}

// Runs of all tests set a timeout: on a busy machine a package may exceed go test's default of ten
// minutes.
func TestTimeouts(t *testing.T) {
	files, err := filepath.Glob(".github/workflows/*.yml")
	require.NoError(t, err)
	shared, err := os.ReadFile("tools/common.mk")
	require.NoError(t, err)
	require.Contains(t, string(shared), "\nLIMIT := -timeout 2h\n")
	for _, folder := range folders(t) {
		files = append(files, folder+"/Makefile")
	}
	all, runs := regexp.MustCompile(`\btest\b[^&;]*\./\.\.\.`), 0
	for _, file := range append(files, "Makefile", ".ci/run") {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for line := range strings.Lines(string(text)) {
			for _, run := range all.FindAllString(line, -1) {
				runs++
				require.Regexp(t, `-timeout |\$\(LIMIT\)`, run, "%s: %s", file, run)
			}
		}
	}
	require.GreaterOrEqual(t, runs, 3)
}
