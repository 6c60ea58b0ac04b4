package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func Example() {
	main()
	// Output:
	// b1-h8-g2-n128-m128-d64-f32-causal
	// row 0 sees key 0 only, so its O is that V: true
}

// docs/quickstart.md prints the whole program.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/quickstart.md")
	require.NoError(t, err)
	code, err := os.ReadFile("main.go")
	require.NoError(t, err)
	require.Contains(t, string(page), "```go\n"+string(code)+"```\n")
}
