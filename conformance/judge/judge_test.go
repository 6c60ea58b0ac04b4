package judge

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/safetensors"
)

// TestMain makes the test's program a runner if its first argument is the name of one.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "runner" {
		os.Exit(runners[os.Args[2]](os.Args[3]))
	}
	os.Exit(m.Run())
}

var runners = map[string]func(folder string) int{
	"refuses":  func(string) int { fmt.Println("a line\nno windows"); return Unsupported },
	"silent":   func(string) int { return Unsupported },
	"crashes":  func(string) int { fmt.Fprintln(os.Stderr, "out of luck"); return 3 },
	"idle":     func(string) int { return 0 },
	"slow":     func(string) int { time.Sleep(time.Minute); return 0 },
	"no_bytes": func(folder string) int { return put(folder, nil) },
	"zeros":    zeros,
}

func put(folder string, b []byte) int {
	if os.WriteFile(filepath.Join(folder, conformance.OutputsFile), b, 0o666) != nil {
		return 1
	}
	return 0
}

// zeros writes O of zeros in the shape that case.json gives.
func zeros(folder string) int {
	var c struct {
		Batch, Heads int
		QLen         int `json:"q_len"`
		VDim         int `json:"v_dim"`
	}
	text, err := os.ReadFile(filepath.Join(folder, conformance.TaskFile))
	if err != nil || json.Unmarshal(text, &c) != nil {
		return 1
	}
	o := safetensors.FromFloat32s("o", []int{c.Batch, c.Heads, c.QLen, c.VDim}, make([]float32, c.Batch*c.Heads*c.QLen*c.VDim))
	var b bytes.Buffer
	if (&safetensors.File{Tensors: []safetensors.Tensor{o}}).Write(&b) != nil {
		return 1
	}
	return put(folder, b.Bytes())
}

func program(runner string) []string { return []string{os.Args[0], "runner", runner} }

func TestOutcomes(t *testing.T) {
	for _, x := range []struct {
		runner string
		status Status
		reason string
	}{
		{"refuses", CannotRun, "no windows"},
		{"silent", Failed, "exit status 77 without a reason"},
		{"crashes", Failed, "exit status 3: out of luck"},
		{"idle", Failed, "outputs.safetensors is missing"},
		{"slow", Failed, "no result after 300ms"},
		{"no_bytes", Failed, "outputs.safetensors: "},
		{"zeros", Failed, ""},
	} {
		o := Options{Program: program(x.runner), Case: "causal_short", Timeout: time.Minute}
		if x.runner == "slow" {
			o.Timeout = 300 * time.Millisecond
		}
		results, err := Run(t.Context(), o)
		require.NoError(t, err)
		require.Len(t, results, 1)
		require.Equal(t, x.status, results[0].Status, x.runner)
		require.Contains(t, results[0].Reason, x.reason)
		require.Equal(t, x.runner == "zeros", len(results[0].Faults) == 1, "%v", results[0])
	}
}

func TestRunRefuses(t *testing.T) {
	for want, o := range map[string]Options{
		"the program is missing": {},
		`no case matches "x"`:    {Program: program("idle"), Case: "x"},
		`pattern "["`:            {Program: program("idle"), Case: "["},
		"no such file":           {Program: []string{"/no/such/program"}, Case: "causal_short"},
	} {
		_, err := Run(t.Context(), o)
		require.ErrorContains(t, err, want)
	}
}

// A stale output does not count, and --keep leaves the folders.
func TestKeep(t *testing.T) {
	folder := t.TempDir()
	for _, runner := range []string{"zeros", "idle"} {
		results, err := Run(t.Context(), Options{Program: program(runner), Case: "empty_row*", Keep: folder})
		require.NoError(t, err)
		require.Len(t, results, 6)
		require.Equal(t, runner == "idle", results[0].Reason == "outputs.safetensors is missing")
	}
	require.FileExists(t, filepath.Join(folder, "empty_row-f16", conformance.InputsFile))
}

func TestFormats(t *testing.T) {
	o := Options{Program: program("zeros"), Case: "causal_short*"}
	results, err := Run(t.Context(), o)
	require.NoError(t, err)
	results = append(results, Result{Case: "a", Status: Passed}, Result{Case: "b|", Status: CannotRun, Reason: "no <windows>"})
	r := NewReport(o, results)
	text := map[string]string{}
	for _, format := range Formats() {
		var b strings.Builder
		require.NoError(t, r.Write(&b, format))
		text[format] = b.String()
	}
	require.ErrorContains(t, r.Write(&strings.Builder{}, "yaml"), "must be text, json, markdown, junit")
	require.Regexp(t, `(?s)^FAIL causal_short: o\[0 0 \d \d\] = 0, want .*of 24 elements are wrong\n     this case catches: a causal mask aligned .*`+
		`     rerun: flashrun judge --case causal_short -- .* runner zeros\n.*unsupported: no <windows>: 1 cases\n.*: 1 passed, 3 failed, 1 unsupported\n$`, text["text"])
	require.Contains(t, text["markdown"], "| `causal_short-f16` | a causal mask aligned to the top left when N &lt; M | o[")
	var back Report
	require.NoError(t, json.Unmarshal([]byte(text["json"]), &back))
	require.Equal(t, 3, back.Failed)
	var suite junitSuite
	require.NoError(t, xml.Unmarshal([]byte(text["junit"]), &suite))
	require.Equal(t, []int{5, 3, 1}, []int{suite.Tests, suite.Failures, suite.Skipped})
	require.Contains(t, suite.Cases[0].Failure.Text, "rerun: flashrun judge --case causal_short -- ")
	require.Equal(t, "no <windows>", suite.Cases[4].Skipped.Message)
}
