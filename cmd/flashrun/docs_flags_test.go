package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	// flagTable is a table in docs/flashrun.md, with its marks and the name of its command.
	flagTable = regexp.MustCompile(`(?s)<!-- flags of (\w+): made by make docs -->\n.*?<!-- end -->\n`)
	// flagHelp matches a line of a command's help: a flag, its value, and its description.
	flagHelp = regexp.MustCompile(`(?m)^ +((?:-\w, )?--\S+(?: \S+)?) {2,}(.+)$`)
	inTables = strings.NewReplacer("|", `\|`, "*", `\*`, "<", `\<`)
)

// The tables of flags in docs/flashrun.md are the commands' help. make docs writes them.
func TestDocsOfFlags(t *testing.T) {
	const name = "../../docs/flashrun.md"
	text, tables := docText(t, name), 0
	want := flagTable.ReplaceAllStringFunc(text, func(table string) string {
		tables++
		command := flagTable.FindStringSubmatch(table)[1]
		return fmt.Sprintf("<!-- flags of %s: made by make docs -->\n| flag | meaning |\n|---|---|\n%s<!-- end -->\n", command, flagRows(t, command))
	})
	require.Equal(t, 6, tables)
	require.NotContains(t, flagTable.ReplaceAllString(text, ""), "| flag |", "a table that is written by hand")
	if *writeDocs {
		require.NoError(t, os.WriteFile(name, []byte(want), 0o644))
	}
	require.Equal(t, want, docText(t, name), "%s is not what the commands say: make docs", name)
}

// flagRows returns a row for each flag of a command but --help.
func flagRows(t *testing.T, command string) string {
	cmd, _, err := newRoot().Find([]string{command})
	require.NoError(t, err)
	require.Equal(t, command, cmd.Name())
	var rows strings.Builder
	help := flagHelp.FindAllStringSubmatch(cmd.LocalFlags().FlagUsages(), -1)
	require.NotEmpty(t, help)
	for _, m := range help {
		if m[1] != "-h, --help" {
			fmt.Fprintf(&rows, "| `%s` | %s |\n", strings.ReplaceAll(m[1], "|", `\|`), inTables.Replace(m[2]))
		}
	}
	return rows.String()
}
