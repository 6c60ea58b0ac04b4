package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

var (
	// commandRow is a row in docs/flashrun.md's table of commands.
	commandRow = regexp.MustCompile("(?m)^\\| \\[?`(\\w+)`[^|]*\\| [^|]+ \\|$")
	// codeText is a line or a span of code.
	codeText = regexp.MustCompile("(?m)^    .*$|`[^`\n]+`")
	// flagName is a flag in code.
	flagName = regexp.MustCompile(`(?:^|[ (])--([a-z][a-z-]+)`)
	// flashrunCall is a command of flashrun with its name, up to a pipe.
	flashrunCall = regexp.MustCompile(`(?:^|[ /])flashrun ([a-z]+)([^|]*)`)
)

// docs/flashrun.md has a row for each command. Each flag on the pages exists: in a call
// of a command it is that command's, elsewhere any command's.
func TestFlagsOnPages(t *testing.T) {
	root := newRoot()
	var commands []string
	head, _, _ := strings.Cut(docText(t, "../../docs/flashrun.md"), "\n## ")
	for _, m := range commandRow.FindAllStringSubmatch(head, -1) {
		commands = append(commands, m[1])
	}
	root.InitDefaultCompletionCmd()
	var want []string
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() {
			want = append(want, cmd.Name())
		}
	}
	require.ElementsMatch(t, want, commands)

	flags := 0
	for _, page := range []string{"flashrun", "limits", "scale"} {
		for _, code := range codeText.FindAllString(docText(t, "../../docs/"+page+".md"), -1) {
			code = strings.Trim(code, "`")
			known := root.Commands()
			if call := flashrunCall.FindStringSubmatch(code); call != nil {
				cmd, _, err := root.Find([]string{call[1]})
				require.NoError(t, err, "%s.md: %s", page, code)
				known, code = []*cobra.Command{cmd}, call[2]
			} else if !strings.HasPrefix(code, "--") {
				continue // of another program
			}
			for _, m := range flagName.FindAllStringSubmatch(code, -1) {
				flags++
				require.True(t, slices.ContainsFunc(known, func(c *cobra.Command) bool {
					return c.Flags().Lookup(m[1]) != nil || root.PersistentFlags().Lookup(m[1]) != nil || m[1] == "help"
				}), "%s.md: no flag --%s: %s", page, m[1], code)
			}
		}
	}
	require.Greater(t, flags, 50)
}
