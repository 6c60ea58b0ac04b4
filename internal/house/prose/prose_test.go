package prose

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestText(t *testing.T) {
	for name, want := range map[string]string{
		"a.go": " what a\n b\n", "a.cu": " what a \n b\n", "a.md": "what a x\n\nx\n\nx\n", "a.py": "",
	} {
		text := map[string]string{
			"a.go": "// what a\n//go:build x\npackage a // b\nvar s = \"// what\"\n",
			"a.cu": "/* what a */ const char *s = \"// \\\" what\"; // b\n",
			"a.md": "what a `what`\n\n```\nwhat\n```\n\n    what\n",
			"a.py": "# what",
		}[name]
		require.Equal(t, want, Text(name, text), name)
	}
}

func TestCount(t *testing.T) {
	var c Count
	c.Add("What a call\ntakes, those\nof others; so many.")
	require.Equal(t, 9, c.Words)
	require.Equal(t, 3, c.Hits)
	require.InDelta(t, 333.3, c.Rate(), .1)
	for _, e := range Expressions {
		require.NotEmpty(t, e.Name)
	}
	c = Count{}
	c.Add("The kernel reads the tensor's rows, and stores their sum.")
	require.Zero(t, c.Hits)
}
