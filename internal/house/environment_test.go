package house

import (
	"os"
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
	read := map[string]bool{"GODEBUG": true, "GOMAXPROCS": true}
	for _, file := range tracked(t, "*.go", "capi/python/src/*.py") {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range variable.FindAllStringSubmatch(string(data), -1) {
			read[m[1]] = true
		}
	}
	for _, name := range own {
		require.True(t, read[name], name)
		delete(read, name)
	}
	page, err := os.ReadFile("docs/limits.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "\n## Environment variables\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	for _, row := range regexp.MustCompile("(?m)^\\| (`[A-Z_`, ]+`) \\|").FindAllStringSubmatch(section, -1) {
		for name := range strings.SplitSeq(row[1], ", ") {
			name = strings.Trim(name, "`")
			require.True(t, read[name], "no source reads %s, or it has two rows", name)
			delete(read, name)
		}
	}
	require.Empty(t, read, "variables without a row")
}
