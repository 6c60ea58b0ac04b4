package main

import (
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/dispatch"
)

// The baseline computes what every kernel must: all grid problems and traps, in every
// dtype and layout, with masks and grouped heads, against the oracle.
func TestNaiveConforms(t *testing.T) {
	o := conformance.Options{Sweep: 20, Seed: 23}
	if testing.Short() {
		o = conformance.Options{Case: "b4-*"} // a part of the grid
	}
	ran := 0
	for r := range conformance.Results(t.Context(), naiveKernels(), o) {
		if r.Err != nil {
			t.Errorf("%s on %s: %v", r.Kernel, r.Case, r.Err)
		}
		ran++
	}
	require.Greater(t, ran, 50)
}

// What the baseline says that it takes is what flashrun memory says of the matrices,
// and what a call allocates.
func TestNaiveMemory(t *testing.T) {
	for _, name := range []string{"b2-h4-g2-n100-m300-d32-f32", "b1-h2-g1-n257-m65-d64-dv32-f32-causal", "b1-h2-g2-n200-m200-d32-bf16"} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		for _, k := range naiveKernels() {
			matrices := newMemoryTable(p, k.Pass).full
			want, _ := new(big.Float).SetInt(matrices).Float64()
			if p.DType == flashkit.Float32 {
				require.Equal(t, want, k.Needs(p.Ask(k.Pass)).Host, k.Name)
			} else {
				require.GreaterOrEqual(t, k.Needs(p.Ask(k.Pass)).Host, 2*want, "in float32, and the copies")
			}
			call := zeroCall(p, k)
			bytes, err := allocated(func() error { return call(t.Context()) })
			require.NoError(t, err)
			require.GreaterOrEqual(t, float64(bytes), k.Needs(p.Ask(k.Pass)).Host, k.Name)
			require.Less(t, float64(bytes), 1.25*k.Needs(p.Ask(k.Pass)).Host+256<<10, k.Name)
		}
	}
}

// Time and memory of the baseline stand beside those of the kernels. Dispatch neither
// runs it nor knows it.
func TestBenchBaseline(t *testing.T) {
	r := benchResults(t, "--seq", "64", "--causal", "both", "--dtype", "f32,bf16", "--backend", "simd", "--baseline", "naive")
	found := 0
	for _, x := range r.Results {
		p, err := flashkit.ParseProblem(x.Problem)
		require.NoError(t, err)
		pass := flashkit.PassForward
		if x.Pass == flashkit.PassBackward.String() {
			pass = flashkit.PassBackward
		}
		require.Equal(t, int64(p.Bytes(pass))+x.ExtraBytes, x.PeakBytes)
		if x.Backend == naiveBaseline {
			found++
			require.False(t, x.Chosen)
			matrices := newMemoryTable(p, pass).full.Int64()
			require.Greater(t, x.PeakBytes, matrices)
		}
	}
	require.Equal(t, 8, found)
	require.Empty(t, r.Failures)

	d := dispatch.All(t.Context())
	defer d.Close()
	require.False(t, slices.ContainsFunc(d.Kernels(), func(k flashkit.Kernel) bool { return strings.HasPrefix(k.Name, naiveBaseline) }))
	_, err := d.With(naiveBaseline)
	require.Error(t, err)

	table := ok(t, quickBench("--seq", "16", "--backend", "simd/fwd_generic", "--baseline", "naive")...)
	require.Regexp(t, `(?m) extra +peak$`, table)
	require.Regexp(t, `(?m)^forward +b1-h2-g2-n16-m16-d64-f32 +naive/fwd_matrices .*KiB$`, table)
}

// A problem whose matrices do not fit is refused before anything is measured.
func TestBenchBaselineBadInput(t *testing.T) {
	for _, test := range []struct {
		args string
		want []string
	}{
		{"--seq 16,3000000 --heads 1 --baseline naive", []string{"--seq 3000000", "--baseline naive", "matrices of b1-h1-g1-n3000000-m3000000-d64-f32", "TiB", "free"}},
		{"--baseline clever", []string{"--baseline", `"clever"`, "naive"}},
		{"--baseline naive --regret", []string{"--baseline naive", "--regret"}},
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
