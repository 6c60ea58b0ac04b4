package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// The tables of parameters in docs/library.md and docs/flashrun.md follow from the root's list.
// make docs writes them.
func TestDocsOfParameters(t *testing.T) {
	names, flags := "| in the name | field | to |\n|---|---|---|\n", "| flag | to |\n|---|---|\n"
	for _, x := range flashkit.Parameters() {
		about := strings.ReplaceAll(x.About, "*", `\*`)
		names += fmt.Sprintf("| `%s` | `%s` | %s |\n", parameterForm(&x), x.Field, about)
		if _, ok := x.Of(new(flashkit.Problem)).(*float32); ok {
			flags += fmt.Sprintf("| `--%s %s` | %s |\n", x.Name, x.Value, about)
		}
	}
	for name, table := range map[string]string{"../../docs/library.md": names, "../../docs/flashrun.md": flags} {
		text := docText(t, name)
		want := replaceMarked(t, text, table)
		if *writeDocs {
			require.NoError(t, os.WriteFile(name, []byte(want), 0o644))
		}
		require.Equal(t, want, docText(t, name), "%s is not what the list says: make docs", name)
	}
}
