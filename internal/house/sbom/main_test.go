package main

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program.exe")
	out, err := exec.Command("go", "build", "-o", program, "../testdata/simdonly").CombinedOutput()
	require.NoError(t, err, "%s", out)
	var text strings.Builder
	require.NoError(t, run(&text, []string{"2026-01-02T15:04:05Z", program, program}))
	var d document
	require.NoError(t, json.Unmarshal([]byte(text.String()), &d))
	require.Equal(t, "2026-01-02T15:04:05Z", d.Metadata.Timestamp)
	require.Equal(t, "github.com/flashkit-go/flashkit", d.Metadata.Component.Name)
	versions := map[string]string{}
	for _, c := range d.Components {
		require.NotContains(t, versions, c.Name)
		require.Equal(t, "pkg:golang/"+c.Name+"@"+c.Version, c.PURL)
		versions[c.Name] = c.Version
	}
	require.Regexp(t, `^v0\.`, versions["golang.org/x/sys"])
	require.True(t, strings.HasPrefix("go"+versions["std"], strings.Fields(runtime.Version())[0]))
	require.Error(t, run(&text, []string{"2026-01-02T15:04:05Z", "main.go"}))
	require.Error(t, run(&text, []string{"2026-01-02T15:04:05Z"}))
}
