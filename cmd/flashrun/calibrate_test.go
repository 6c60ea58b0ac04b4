package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/bench"
)

const tiny = "b1-h2-g1-n5-m9-d8-f32-causal"

// profileAt makes a file the profile for the rest of the test.
func profileAt(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "cache", "profile")
	t.Setenv("FLASHKIT_PROFILE", path)
	return path
}

func calibrateTiny(args ...string) []string {
	return append([]string{"calibrate", "--problem", tiny, "--time-per-case", "1ms"}, args...)
}

func TestCalibrate(t *testing.T) {
	path := profileAt(t)
	var c bench.Calibration
	require.NoError(t, json.Unmarshal([]byte(ok(t, calibrateTiny("--json", "--backend", "simd")...)), &c))
	require.Equal(t, path, c.Profile)
	require.NotEmpty(t, c.Kernels)
	for _, k := range c.Kernels {
		require.Contains(t, k.Kernel, "simd/")
		require.Equal(t, 1, k.Problems)
		require.Positive(t, k.Least)
		require.LessOrEqual(t, k.Least, k.Median)
		require.LessOrEqual(t, k.Median, k.Most)
	}
	lastOf := func(kernel string) float64 {
		var lines []explained
		require.NoError(t, json.Unmarshal([]byte(ok(t, "explain", tiny, "--json")), &lines))
		i := slices.IndexFunc(lines, func(l explained) bool { return l.Name == kernel })
		require.GreaterOrEqual(t, i, 0)
		return lines[i].Last
	}
	require.Positive(t, lastOf("simd/fwd_generic"))
	require.Zero(t, lastOf("wasm/fwd_scalar"))
	require.Contains(t, ok(t, "explain", tiny), "last ")

	ok(t, "run", "--problem", tiny, "--backend", "wasm/fwd_scalar", "--repeat", "3")
	require.Positive(t, lastOf("wasm/fwd_scalar"), "run adds to a profile that is there")
	ok(t, "bench", "--problem", tiny, "--backend", "wasm/fwd_simd128", "--limits=false", "--time-per-case", "1ms")
	require.Positive(t, lastOf("wasm/fwd_simd128"), "and so does bench")

	table := filepath.Join(t.TempDir(), "x")
	require.Contains(t, ok(t, calibrateTiny("--out", table)...), "written to "+table)
	require.FileExists(t, table)
}

// No command writes a profile without a request.
func TestNoProfileUnasked(t *testing.T) {
	path := profileAt(t)
	ok(t, "run", "--problem", tiny, "--repeat", "1")
	ok(t, "list")
	ok(t, "explain", tiny)
	ok(t, "bench", "--problem", tiny, "--backend", "simd", "--limits=false", "--time-per-case", "1ms")
	require.NoDirExists(t, filepath.Dir(path))
}

// An invalid profile is ignored with one warning, and not changed.
func TestBadProfile(t *testing.T) {
	path := profileAt(t)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte("nonsense"), 0o644))
	for _, args := range [][]string{{"list"}, {"explain", tiny}, {"run", "--problem", tiny, "--repeat", "1"}, {"memory", "--formula", tiny},
		{"bench", "--problem", tiny, "--backend", "simd", "--limits=false", "--time-per-case", "1ms"}} {
		code, stdout, stderr := flashrun(t, args...)
		require.Equal(t, exitOK, code)
		require.NotEmpty(t, stdout)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		require.Contains(t, stderr, "warning: profile ignored: "+path)
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "nonsense", string(text))

	require.NoError(t, os.WriteFile(path, []byte("flashkit-profile 1 damaged"), 0o644))
	ok(t, calibrateTiny()...) // replaces the damaged profile
	ok(t, "list")
}

func TestBadCalibrate(t *testing.T) {
	for _, args := range [][]string{{"--time-per-case", "0"}, {"--problem", "b1"}, {"--backend", "tpu"}, {"x"}} {
		code, stdout, stderr := flashrun(t, append([]string{"calibrate"}, args...)...)
		require.Equal(t, exitUsage, code, args)
		require.Empty(t, stdout)
		require.Contains(t, stderr, args[len(args)-1])
	}
	code, _, stderr := flashrun(t, calibrateTiny()...)
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "FLASHKIT_PROFILE is off")
	require.Contains(t, stderr, "--out")
}
