package house

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/limits.md has a row for each environment variable that the sources read, once, and for
// no other.
func TestEnvironmentVariables(t *testing.T) {
	own := []string{ // a test sets it for a copy of itself
		"FLASHKIT_LM_ARGS", "FLASHKIT_NO_MEMORY", "FLASHKIT_RANK_OF", "FLASHKIT_TEST_INNER", "FLASHKIT_WATCHED",
	}
	variable := regexp.MustCompile(`["']((?:FLASHKIT_[A-Z_]+|NCCL_COMM_ID))["']`)
	variables := map[string]bool{"GODEBUG": true, "GOMAXPROCS": true}
	for _, file := range tracked(t, "*.go", "capi/python/src/*.py") {
		for _, m := range variable.FindAllStringSubmatch(read(t, file), -1) {
			variables[m[1]] = true
		}
	}
	for _, name := range own {
		require.True(t, variables[name], name)
		delete(variables, name)
	}
	_, section, found := strings.Cut(read(t, "docs/limits.md"), "\n## Environment variables\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	for _, row := range regexp.MustCompile("(?m)^\\| (`[A-Z_`, ]+`) \\|").FindAllStringSubmatch(section, -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			name = strings.Trim(name, "`")
			require.True(t, variables[name], "no source reads %s, or it has two rows", name)
			delete(variables, name)
		}
	}
	require.Empty(t, variables, "variables without a row")
}
