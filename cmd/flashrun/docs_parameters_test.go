package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// The table of parameters in docs/library.md follows from the root's list. make docs writes it.
func TestDocsOfParameters(t *testing.T) {
	const name = "../../docs/library.md"
	table := "| in the name | field | to |\n|---|---|---|\n"
	for _, x := range flashkit.Parameters() {
		about := strings.ReplaceAll(x.About, "*", `\*`)
		table += fmt.Sprintf("| `%s` | `%s` | %s |\n", parameterForm(&x), x.Field, about)
	}
	want := replaceMarked(t, docText(t, name), table)
	if *writeDocs {
		require.NoError(t, os.WriteFile(name, []byte(want), 0o644))
	}
	require.Equal(t, want, docText(t, name), "%s is not what the list says: make docs", name)
}
