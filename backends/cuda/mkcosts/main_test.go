package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// The tables follow from costs.json.
func TestTablesAreCurrent(t *testing.T) {
	text, err := os.ReadFile("../costs.json")
	require.NoError(t, err)
	source, err := os.ReadFile("../costs.go")
	require.NoError(t, err)
	made, err := generate(text)
	require.NoError(t, err)
	require.Equal(t, string(source), string(made), "run make costs")
	_, err = generate([]byte(`{"costs": {}, "other": 1}`))
	require.Error(t, err)
}
