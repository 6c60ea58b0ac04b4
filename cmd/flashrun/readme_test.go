package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every command of README.md works: make has the target, Go has the package, and
// flashrun runs it, on any machine.
func TestReadmeCommands(t *testing.T) {
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

func readmeCommand(t *testing.T, words []string) {
	switch words[0] {
	case "make":
		require.Len(t, words, 2)
		require.Regexp(t, `(?m)^`+regexp.QuoteMeta(words[1])+`:.*## `, docText(t, "../../Makefile"))
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

// packageFolder returns where a package of the module lies.
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
