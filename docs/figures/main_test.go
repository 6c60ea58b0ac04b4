package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// Before kernels are used: they may cache the number of workers.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(workers)
	os.Exit(m.Run())
}

// The figures match the program and are valid XML.
func TestFigures(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, f := range files {
		if name := f.Name(); strings.HasSuffix(name, ".svg") {
			require.Contains(t, figures, name, "nothing draws it")
		}
	}
	for name, draw := range figures {
		want := draw().svg()
		got, err := os.ReadFile(name)
		require.NoError(t, err, "make docs draws it")
		require.Equal(t, string(want), strings.ReplaceAll(string(got), "\r\n", "\n"), "docs/figures/%s is not what the program draws: make docs", name)
		for d := xml.NewDecoder(bytes.NewReader(want)); ; {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, name)
		}
		for _, never := range []string{"NaN", "Inf", "%!"} {
			require.NotContains(t, string(want), never)
		}
	}
}

// The tiles add up to the pairs that the mask lets through.
func TestTiles(t *testing.T) {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 16, KVLen: 16, Dim: 1, VDim: 1, Band: flashkit.Causal()}
	count := map[string]int{}
	for r := 0; r < p.QLen; r += side {
		for c := 0; c < p.KVLen; c += side {
			count[tileClass(p, r, c)]++
		}
	}
	require.Equal(t, map[string]int{"now": 6, "edge": 4, "none": 6}, count)
	require.Equal(t, int64(6*side*side+4*10), p.Area())
}
