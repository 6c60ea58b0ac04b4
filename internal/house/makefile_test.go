package house

import (
	"os"
	"os/exec"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// passed is a line of the root's Makefile: a folder, and the targets of its Makefile.
var passed = regexp.MustCompile(`(?m)^([a-z0-9/]+) *:= ([a-z0-9 -]+)$`)

// folders returns the folders with a Makefile to which the root's passes targets on.
func folders(t *testing.T) (list []string) {
	for _, m := range passed.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		list = append(list, m[1])
	}
	require.Greater(t, len(list), 10)
	return list
}

// targets returns the targets of the root's Makefile, including those of folders.
func targets(t *testing.T) map[string]bool {
	all, text := map[string]bool{}, read(t, "Makefile")
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(text, -1) {
		all[m[1]] = true
	}
	for _, m := range passed.FindAllStringSubmatch(text, -1) {
		for _, target := range strings.Fields(m[2]) {
			all[target] = true
		}
	}
	return all
}

func read(t *testing.T, name string) string {
	enter()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

// tracked returns the files that git tracks and that match any of the patterns.
func tracked(t *testing.T, patterns ...string) []string {
	enter()
	list, err := exec.Command("git", append([]string{"ls-files"}, patterns...)...).Output()
	if err != nil {
		t.Skip("not a git checkout: ", err)
	}
	files := strings.Fields(string(list))
	for _, file := range files { // a cached result does not outlive changes of the folders that a test reads
		_, err := os.ReadDir(path.Dir(file))
		require.NoError(t, err)
	}
	return files
}

// The root's Makefile is short: a newcomer's twelve targets with descriptions. Others are in their
// folders' Makefiles.
func TestMakefile(t *testing.T) {
	text := read(t, "Makefile")
	require.LessOrEqual(t, strings.Count(text, "\n"), 150)
	require.LessOrEqual(t, len(regexp.MustCompile(`(?m)^[a-z-]+:.*## `).FindAllString(text, -1)), 12)
	for _, m := range passed.FindAllStringSubmatch(text, -1) {
		there := read(t, m[1]+"/Makefile")
		for _, target := range strings.Fields(m[2]) {
			require.Regexp(t, `(?m)^`+target+`:`, there, "%s/Makefile", m[1])
		}
	}
}

// Every command of make in a document, a comment or a message names a target.
func TestNamedTargets(t *testing.T) {
	targets, found := targets(t), 0
	command := regexp.MustCompile("(?m)(?:`|^ +\\$ |^ {4})make( [a-z0-9 -]+)(?:[A-Z`#=].*)?$|`make( [a-z0-9 -]+)`")
	for _, file := range tracked(t, "*.md", "*.py", "*.sh", "Containerfile") {
		if strings.HasPrefix(file, "backends/cuda/gorgoniacu/") || strings.HasPrefix(file, "capi/python/") {
			continue // their own Makefiles
		}
		for _, m := range command.FindAllStringSubmatch(read(t, file), -1) {
			for _, word := range strings.Fields(m[1] + m[2]) {
				if word[0] != '-' {
					found++
					require.Contains(t, targets, word, "%s: %q", file, m[0])
				}
			}
		}
	}
	require.Greater(t, found, 60)
}
