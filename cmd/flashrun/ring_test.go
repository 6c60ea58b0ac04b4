package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/ranks"
)

func TestRing(t *testing.T) {
	for _, c := range [][]string{
		{"b1-h4-g2-n200-m200-d16-f32-causal", "--ranks", "3"},
		{"b2-h2-g1-n77-m90-d16-f32-window20.3", "--ranks", "5", "--pass", "fwd,bwd"},
		{"b1-h2-g1-n300-m300-d16-bf16-causal-softcap5", "--ranks", "2", "--pass", "fwd,bwd", "--ordered"},
		{"b2-h4-g2-n90-m90-d16-f32-causal-dropout0.25", "--ranks", "3", "--pass", "fwd,bwd"},
		{"b1-h2-g1-n300-m300-d16-f32-causal-dropout0.1", "--ranks", "2", "--pass", "fwd,bwd", "--ordered"},
	} {
		var out, errs bytes.Buffer
		args := append([]string{"ring", "--check", "--json", "--backend", "simd", "--problem"}, c...)
		require.Equal(t, exitOK, execute(t.Context(), args, &out, &errs), "%v: %s", c, &errs)
		var r ranks.Result
		require.NoError(t, json.Unmarshal(out.Bytes(), &r))
		require.Equal(t, c[0], r.Problem)
		require.Len(t, r.Sent, r.Ranks)
		require.NotNil(t, r.Worst)
		require.Contains(t, errs.String(), "step 1 of")
		out.Reset()
		require.Equal(t, exitOK, execute(t.Context(), append(args, "--json=false", "--quiet"), &out, &errs))
		require.Contains(t, out.String(), "efficiency")
	}
}

func TestRingRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"--problem":        {},
		"ragged":           {"--problem", "b2-h2-g1-n7-m9-d16-f32-ragged"},
		"as --ranks":       {"--problem", "b1-h2-g1-n7-m9-d16-f32", "--device", "0,1", "--ranks", "2"},
		"names none":       {"--problem", "b1-h2-g1-n7-m9-d16-f32", "--host"},
		"less than 2^31":   {"--problem", "b1-h2-g1-n7-m9-d16-f32", "--lengths", "2147483647,1"},
		"be negative":      {"--problem", "b1-h2-g1-n7-m9-d16-f32", "--lengths", "-1"},
		"from 0":           {"--problem", "b1-h2-g1-n7-m9-d16-f32", "--device", "x"},
		"--ranks 0":        {"--problem", "b1-h2-g1-n7-m9-d16-f32", "--ranks", "0"},
		"--ranks -1":       {"--problem", "b1-h2-g1-n7-m9-d16-f32", "--ranks", "-1"},
		"at least one":     {"--problem", "b1-h2-g1-n7-m9-d16-f32", "--runs", "0"},
		"auto, peer, nccl": {"--problem", "b1-h2-g1-n7-m9-d16-f32", "--transport", "string"},
		"needs the GPUs":   {"--problem", "b1-h2-g1-n7-m9-d16-f32", "--transport", "nccl"},
		"which --host":     {"--problem", "b1-h2-g1-n7-m9-d16-f32", "--transport", "peer", "--device", "0", "--host"},
		"must be one of":   {"--problem", "b1-h2-g1-n7-m9-d16-f32", "--link", "string"},
		"backward pass":    {"--problem", "b1-h2-g1-n7-m9-d16-f32-carry", "--pass", "fwd,bwd"},
	} {
		var out, errs bytes.Buffer
		require.NotEqual(t, exitOK, execute(t.Context(), append([]string{"ring", "--quiet"}, args...), &out, &errs), want)
		require.Contains(t, errs.String(), want)
		require.Empty(t, out.String())
	}
}

// TestRingMPI runs the command as ranks of mpiexec.
func TestRingMPI(t *testing.T) {
	mpiexec := os.Getenv("FLASHKIT_MPIEXEC")
	if mpiexec == "" {
		t.Skip("FLASHKIT_MPIEXEC names no mpiexec: make ring sets it")
	}
	binary := filepath.Join(t.TempDir(), "flashrun")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	text, err := build.CombinedOutput()
	require.NoError(t, err, "%s", text)
	run := exec.CommandContext(t.Context(), mpiexec, "-n", "3", binary, "ring", "--problem", "b1-h4-g2-n200-m200-d16-f32-causal", "--pass", "fwd,bwd", "--check", "--json", "--quiet", "--workers", "1")
	var errs bytes.Buffer
	run.Stderr = &errs
	text, err = run.Output()
	require.NoError(t, err, "%s", &errs)
	var r ranks.Result
	require.NoError(t, json.Unmarshal(text, &r), "%s", text)
	require.Equal(t, 3, r.Ranks)
}

// Processes of a launcher have GPUs by their numbers on the machine, and NCCL or an error that names it.
func TestRingNCCL(t *testing.T) {
	t.Setenv("RANK", "1")
	t.Setenv("WORLD_SIZE", "2")
	t.Setenv("LOCAL_RANK", "1")
	t.Setenv("FLASHKIT_NCCL", "/nowhere/libnccl.so.2")
	for want, args := range map[string][]string{
		"set FLASHKIT_NCCL":  {"--transport", "nccl"},
		"is number 1 of its": {"--transport", "nccl", "--device", "3"},
		"torchrun started 2": {"--transport", "peer", "--device", "0"},
		"with commas":        {"--transport", "nccl", "--device", "0,x"},
	} {
		var out, errs bytes.Buffer
		require.NotEqual(t, exitOK, execute(t.Context(), append([]string{"ring", "--quiet", "--problem", "b1-h2-g1-n7-m9-d16-f32"}, args...), &out, &errs), want)
		require.Contains(t, errs.String(), want)
	}
}

// Packed sequences, and several problems, each with a line of its own.
func TestRingPacked(t *testing.T) {
	var out, errs bytes.Buffer
	args := []string{"ring", "--check", "--json", "--quiet", "--backend", "simd", "--ranks", "3", "--pass", "fwd,bwd", "--lengths", "70,3,0,31,12",
		"--problem", "b1-h4-g2-n1-m1-d16-f32-causal,b1-h2-g2-n1-m1-d8-bf16"}
	require.Equal(t, exitOK, execute(t.Context(), args, &out, &errs), "%s", &errs)
	lines := json.NewDecoder(&out)
	for _, want := range []string{"b5-h4-g2-n70-m70-d16-f32-causal-ragged", "b5-h2-g2-n70-m70-d8-bf16-ragged"} {
		var r ranks.Result
		require.NoError(t, lines.Decode(&r))
		require.Equal(t, want, r.Problem)
		require.NotNil(t, r.Worst)
	}
}
