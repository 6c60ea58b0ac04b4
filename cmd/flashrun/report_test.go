package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/slow"
)

func TestReportCommand(t *testing.T) {
	slow.UnderRace(t)
	dir := t.TempDir()
	in, out := filepath.Join(dir, "results.json"), filepath.Join(dir, "report.html")
	ok(t, quickBench("--seq", "16,32", "--causal=both", "--backend", "simd,wasm", "--out", in)...)
	require.Equal(t, out+": 16 results\n", ok(t, "report", in, "-o", out))
	page, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Contains(t, string(page), "What the machine does at most was not measured.")

	// A second file adds cases and replaces repeated ones.
	more := filepath.Join(dir, "more.json")
	ok(t, quickBench("--seq", "32,64", "--causal=both", "--backend", "simd,wasm", "--out", more)...)
	require.Equal(t, out+": 24 results\n", ok(t, "report", in, more, "-o", out))

	svg := filepath.Join(dir, "plot.svg")
	ok(t, "report", in, "-o", svg, "--plot", "roofline")
	image, err := os.ReadFile(svg)
	require.NoError(t, err)
	require.Contains(t, string(image), "Roofline")
	ok(t, "report", in, "-o", filepath.Join(dir, "plot.txt"), "--format", "svg")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 5)
}

// Bad input gives one line with the field and the value, and no file.
func TestReportBadInput(t *testing.T) {
	dir := t.TempDir()
	good := bench.Results{Format: bench.Format, Limits: []machine.Limit{}, Results: []bench.Result{{Problem: "b1-h1-g1-n100-m100-d64-f32", Pass: "forward",
		Backend: "simd", Kernel: "simd/fwd_generic", Memory: machine.Host, Seconds: .001, P10: .001, P90: .001, Calls: 10, GFLOPS: 2}}}
	file := func(change func(r *bench.Results)) string {
		r := good
		r.Results = slices.Clone(good.Results)
		change(&r)
		path := filepath.Join(dir, fmt.Sprintf("%d.json", time.Now().UnixNano()))
		var b bytes.Buffer
		require.NoError(t, r.WriteJSON(&b))
		require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
		return path
	}
	text := func(s string) string {
		path := filepath.Join(dir, fmt.Sprintf("%d.json", time.Now().UnixNano()))
		require.NoError(t, os.WriteFile(path, []byte(s), 0o644))
		return path
	}
	same := file(func(*bench.Results) {})
	out := filepath.Join(dir, "out", "x.html")
	require.NoError(t, os.Mkdir(filepath.Dir(out), 0o755))
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"nothing":         {nil, []string{"RESULTS", "missing"}},
		"no file":         {[]string{filepath.Join(dir, "none.json")}, []string{"none.json"}},
		"not JSON":        {[]string{text("machine: x")}, []string{"not the JSON of flashrun bench"}},
		"half of it":      {[]string{text(`{"format":1,"results":[{"problem":"b1-h1`)}, []string{"unexpected end"}},
		"another format":  {[]string{text(`{"format":2}`)}, []string{"format = 2", "1"}},
		"a wrong type":    {[]string{text(`{"format":1,"results":[{"seconds":"long"}]}`)}, []string{"results.seconds", "string"}},
		"an overflow":     {[]string{text(`{"format":1,"results":[{"seconds":1e999}]}`)}, []string{"1e999"}},
		"no results":      {[]string{text(`{"format":1,"results":[]}`)}, []string{"no results"}},
		"problem":         {[]string{file(func(r *bench.Results) { r.Results[0].Problem = "b1-h8" })}, []string{"results[0].problem", "b1-h8"}},
		"pass":            {[]string{file(func(r *bench.Results) { r.Results[0].Pass = "sideways" })}, []string{"results[0].pass", "sideways"}},
		"kernel":          {[]string{file(func(r *bench.Results) { r.Results[0].Kernel = "fast" })}, []string{"results[0].kernel", "fast"}},
		"backend":         {[]string{file(func(r *bench.Results) { r.Results[0].Backend = "wasm" })}, []string{"results[0].backend", "wasm", "simd/fwd_generic"}},
		"memory":          {[]string{file(func(r *bench.Results) { r.Results[0].Memory = "tape" })}, []string{"results[0].memory", "tape"}},
		"seconds":         {[]string{file(func(r *bench.Results) { r.Results[0].Seconds = -1 })}, []string{"results[0].seconds = -1"}},
		"calls":           {[]string{file(func(r *bench.Results) { r.Results[0].Calls = 0 })}, []string{"results[0].calls = 0"}},
		"extra":           {[]string{file(func(r *bench.Results) { r.Results[0].ExtraBytes = -5 })}, []string{"results[0].extra_bytes = -5"}},
		"device":          {[]string{file(func(r *bench.Results) { r.Results[0].Device = &bench.DeviceBytes{Workspace: -7} })}, []string{"device_bytes", "-7"}},
		"limit":           {[]string{file(func(r *bench.Results) { r.Limits = []machine.Limit{{Memory: "tape"}} })}, []string{"limits[0].memory", "tape"}},
		"limit's rate":    {[]string{file(func(r *bench.Results) { r.Limits = []machine.Limit{{Memory: "host", GFLOPS: -3}} })}, []string{"limits[0].gflops = -3"}},
		"two machines":    {[]string{same, file(func(r *bench.Results) { r.Machine.CPU = "another" })}, []string{"machine", "another"}},
		"unknown format":  {[]string{same, "--format", "pdf"}, []string{"--format", "pdf"}},
		"unknown ending":  {[]string{same, "-o", out + ".png"}, []string{"--out", ".png", "--format"}},
		"unknown plot":    {[]string{same, "--format", "svg", "--plot", "pie"}, []string{"--plot", "pie", "roofline"}},
		"plot of a page":  {[]string{same, "--plot", "time"}, []string{"--plot time"}},
		"nothing to draw": {[]string{same, "--format", "svg", "--plot", "backends"}, []string{"--plot backends", "two backends"}},
		"over the input":  {[]string{same, "-o", same, "--format", "html"}, []string{"overwrite", same}},
		"no folder":       {[]string{same, "-o", filepath.Join(dir, "none", "x.html")}, []string{"--out", "none"}},
		"a folder":        {[]string{same, "-o", dir, "--format", "html"}, []string{"--out", dir}},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"report"}, test.args...)
			if !slices.Contains(args, "-o") {
				args = append(args, "-o", out)
			}
			code, stdout, stderr := flashrun(t, args...)
			require.Equal(t, exitUsage, code, stderr)
			require.Empty(t, stdout)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
			for _, want := range test.want {
				require.Contains(t, stderr, want)
			}
		})
	}
	left, err := os.ReadDir(filepath.Dir(out))
	require.NoError(t, err)
	require.Empty(t, left, "nothing half-written is left")
}
