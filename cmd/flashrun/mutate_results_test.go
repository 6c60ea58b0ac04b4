package main

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/report"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// jsonNumbers stand for the figures of results.
var jsonNumbers = []string{"0", "-1", "1", "4", "1e-308", "1e308", "-0.0", "1e999", "9223372036854775808", "1e19", "null", "true", `"x"`, "[]", "{}", ""}

var (
	jsonNumber = regexp.MustCompile(`-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?`)
	jsonText   = regexp.MustCompile(`"[^"]*"`)
	jsonField  = regexp.MustCompile(`"[a-z_0-9]+":("[^"]*"|-?[0-9.e+-]+|true|false),?`)
)

// damageJSON returns a changed copy of results, most of which are still JSON.
func (m mutator) damageJSON(text []byte) []byte {
	swap := func(pattern *regexp.Regexp, by string) {
		if found := pattern.FindAllIndex(text, -1); len(found) > 0 {
			at := found[m.IntN(len(found))]
			text = append(append(bytes.Clone(text[:at[0]]), by...), text[at[1]:]...)
		}
	}
	for range 1 + m.IntN(3) {
		switch m.IntN(8) {
		case 0, 1, 2:
			swap(jsonNumber, jsonNumbers[m.IntN(len(jsonNumbers))])
		case 3:
			names := []string{"", "\\u001b[31m<b>", "naive/fwd_matrices", "peer/pytorch", "host", "device", "forward", "b0-h1-g1-n1-m1-d1-f32", "b1-h1-g1-n900000000-m900000000-d64-f32", "f32", "copy", strings.Repeat("x", 5000)}
			swap(jsonText, `"`+names[m.IntN(len(names))]+`"`)
		case 4, 5:
			swap(jsonField, "")
		case 6:
			text = m.damage(text, 0)
		case 7:
			swap(jsonField, `"calls":1,"seconds":1e-9,`)
		}
	}
	return text
}

// Damaged results give a page, a comparison or one clear error.
func TestMutatedResults(t *testing.T) {
	slow.UnderRace(t)
	n := 250
	if testing.Short() {
		n = 60
	}
	dir := t.TempDir()
	path, page := filepath.Join(dir, "r.json"), filepath.Join(dir, "r.html")
	ok(t, "bench", "--seq", "2,8", "--head-dim", "4", "--heads", "1", "--kernels", "all", "--backend", "simd/fwd_generic,wasm", "--time-per-case", "100us", "--baseline", "naive", "--out", path, "--compare", emptyResults(t))
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	m := mutator{rand.New(rand.NewPCG(seed, 0))}
	ran, refused := 0, 0
	for i := range n {
		require.NoError(t, os.WriteFile(path, m.damageJSON(good), 0o644))
		plot := report.PlotNames[m.IntN(len(report.PlotNames))]
		for _, args := range [][]string{
			{"report", path, "-o", page}, {"report", path, "-o", filepath.Join(dir, "r.svg"), "--plot", plot},
			{"bench", "--seq", "2,8", "--head-dim", "4", "--heads", "1", "--backend", "simd/fwd_generic", "--time-per-case", "10us", "--limits=false", "--compare", path},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			var stdout, stderr bytes.Buffer
			code := execute(ctx, args, &stdout, &stderr)
			require.NoError(t, ctx.Err(), "seed %d, file %d: %v", seed, i, args)
			cancel()
			requireClear(t, code, stdout.String(), stderr.String())
			if code == exitOK {
				ran++
			} else {
				refused++
			}
		}
	}
	t.Logf("%d commands ran, %d refused a file", ran, refused)
	require.Greater(t, ran, n/4)
	require.Greater(t, refused, n/4)
}

// emptyResults returns results without cases, for bench --compare.
func emptyResults(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "before.json")
	ok(t, "bench", "--seq", "2", "--head-dim", "4", "--heads", "1", "--backend", "simd/fwd_generic", "--time-per-case", "10us", "--limits=false", "--out", path)
	return path
}
