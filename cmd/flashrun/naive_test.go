package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/bench"
)

// Time and memory of the baseline are listed with the kernels. Dispatch never chooses it.
func TestBenchBaseline(t *testing.T) {
	r := benchResults(t, "--seq", "64", "--causal=both", "--dtype", "f32,bf16", "--backend", "simd", "--baseline", "naive")
	found := 0
	for _, x := range r.Results {
		p, err := flashkit.ParseProblem(x.Problem)
		require.NoError(t, err)
		pass := flashkit.PassForward
		if x.Pass == flashkit.PassBackward.String() {
			pass = flashkit.PassBackward
		}
		require.Equal(t, int64(p.Bytes(pass))+x.ExtraBytes, x.PeakBytes)
		if x.Backend == bench.Naive {
			found++
			require.False(t, x.Chosen)
			matrices := bench.NewMemoryTable(p, pass).Written().Bytes.Int64()
			require.Greater(t, x.PeakBytes, matrices)
		}
	}
	require.Equal(t, 8, found)
	require.Empty(t, r.Failures)

	d := dispatch.All(t.Context())
	defer d.Close()
	require.False(t, slices.ContainsFunc(d.Kernels(), func(k flashkit.Kernel) bool { return strings.HasPrefix(k.Name, bench.Naive) }))
	_, err := d.With(bench.Naive)
	require.Error(t, err)

	table := ok(t, quickBench("--seq", "16", "--backend", "simd/fwd_generic", "--baseline", "naive")...)
	require.Regexp(t, `(?m) extra +peak$`, table)
	require.Regexp(t, `(?m)^forward +b1-h2-g2-n16-m16-d64-f32 +naive/fwd_matrices .*KiB$`, table)
}

// A problem whose matrices do not fit is rejected before measuring.
func TestBenchBaselineBadInput(t *testing.T) {
	for _, test := range []struct {
		args string
		want []string
	}{
		{"--seq 16,3000000 --heads 1 --baseline naive", []string{"--seq 3000000", "--baseline naive", "matrices of b1-h1-g1-n3000000-m3000000-d64-f32", "TiB", "free"}},
		{"--baseline clever", []string{"--baseline", `"clever"`, "naive"}},
		{"--baseline naive --trace layers", []string{"--baseline", "--trace"}},
	} {
		code, stdout, stderr := flashrun(t, append([]string{"bench"}, strings.Fields(test.args)...)...)
		require.Equal(t, exitUsage, code, stderr)
		require.Empty(t, stdout)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		for _, want := range test.want {
			require.Contains(t, stderr, want)
		}
	}
}
