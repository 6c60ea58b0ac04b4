package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// quick are the flags of a bench that tests can afford.
var quick = []string{"bench", "--limits=false", "--time-per-case", "1ms", "--rounds", "2", "--heads", "2"}

func quickBench(args ...string) []string { return append(append([]string(nil), quick...), args...) }

// benchResults runs a bench with --json.
func benchResults(t *testing.T, args ...string) *bench.Results {
	t.Helper()
	var r bench.Results
	d := json.NewDecoder(strings.NewReader(ok(t, quickBench(append(args, "--json")...)...)))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&r))
	require.False(t, d.More(), "one object")
	return &r
}

// grid parses the flags of a grid and returns the names of its problems.
func grid(t *testing.T, args ...string) (names []string, err error) {
	t.Helper()
	var g gridFlags
	cmd := &cobra.Command{}
	g.add(cmd)
	require.NoError(t, cmd.ParseFlags(args))
	problems, err := g.grid(cmd, 1)
	for _, p := range problems {
		names = append(names, p.String())
	}
	return names, err
}

func TestGrid(t *testing.T) {
	for _, test := range []struct {
		args string
		want []string
	}{
		{"--seq 128:512:x2", []string{"b1-h8-g8-n128-m128-d64-f32", "b1-h8-g8-n256-m256-d64-f32", "b1-h8-g8-n512-m512-d64-f32"}},
		{"--seq 8 --causal=both --dtype f32,bf16", []string{"b1-h8-g8-n8-m8-d64-f32", "b1-h8-g8-n8-m8-d64-f32-causal", "b1-h8-g8-n8-m8-d64-bf16", "b1-h8-g8-n8-m8-d64-bf16-causal"}},
		{"--seq 8,16 --q-len 1 --heads 8,4 --kv-heads 2 --head-dim 32 --batch 3 --causal", []string{
			"b3-h8-g2-n1-m8-d32-f32-causal", "b3-h8-g2-n1-m16-d32-f32-causal", "b3-h4-g2-n1-m8-d32-f32-causal", "b3-h4-g2-n1-m16-d32-f32-causal"}},
		{"--seq 8 --heads 1 --window 3,1 --top-left --shift -2", []string{"b1-h1-g1-n8-m8-d64-f32-window3.1-topleft-shift-2"}},
		{"--seq 8 --heads 1 --causal=true --top-left", []string{"b1-h1-g1-n8-m8-d64-f32-causal-topleft"}},
		{"--seq 8 --heads 1 --causal=both --shift 1", []string{"b1-h1-g1-n8-m8-d64-f32-shift1", "b1-h1-g1-n8-m8-d64-f32-causal-shift1"}},
		{"--problem b1-h1-g1-n5-m7-d8-dv6-f16-window3.1 --problem b1-h1-g1-n5-m5-d8-f32 --problem b1-h1-g1-n5-m5-d8-f32",
			[]string{"b1-h1-g1-n5-m7-d8-dv6-f16-window3.1", "b1-h1-g1-n5-m5-d8-f32"}},
	} {
		got, err := grid(t, strings.Fields(test.args)...)
		require.NoError(t, err, test.args)
		require.Equal(t, test.want, got, test.args)
	}
	got, err := grid(t)
	require.NoError(t, err)
	require.Len(t, got, 5, "the default grid")
	_, err = grid(t, "--seq", "1:200:+1", "--q-len", "1:200:+1")
	require.ErrorContains(t, err, "more than 10000 problems")
}

// The results of a bench must match the problem and each other. Times are not checked.
func TestBenchJSON(t *testing.T) {
	slow.UnderRace(t)
	out := filepath.Join(t.TempDir(), "new.json")
	r := benchResults(t, "--seq", "16,32", "--causal=both", "--head-dim", "8", "--kernels", "all", "--backend", "simd/fwd_generic,wasm", "--out", out)
	require.False(t, r.Interrupted)
	require.Empty(t, r.Limits)
	require.Empty(t, r.Failures)
	require.Equal(t, bench.Settings{Kernels: "all", Rounds: 2, TimePerCase: .001, Seed: 1}, r.Settings)
	kernels := map[string]int{}
	for _, x := range r.Results {
		p, err := flashkit.ParseProblem(x.Problem)
		require.NoError(t, err)
		pass := flashkit.PassForward
		if x.Pass == "backward" {
			pass = flashkit.PassBackward
		}
		kernels[x.Kernel]++
		require.Equal(t, "host", x.Memory)
		require.Equal(t, bench.BackendOf(x.Kernel), x.Backend)
		require.Positive(t, x.Calls)
		require.LessOrEqual(t, x.P10, x.Seconds)
		require.LessOrEqual(t, x.Seconds, x.P90)
		require.InEpsilon(t, p.FLOPs(pass)/x.Seconds/1e9, x.GFLOPS, 1e-9)
		require.InEpsilon(t, p.FLOPs(pass)/p.Bytes(pass), x.Intensity, 1e-9)
		require.InEpsilon(t, p.Bytes(pass)/x.Seconds, x.BytesPerSecond, 1e-9)
		require.NotEmpty(t, x.Rounds)
		require.LessOrEqual(t, len(x.Rounds), 2*bench.MinCalls, "two rounds, and more where they have few calls")
		require.True(t, x.P10 <= x.P25 && x.P25 <= x.Seconds && x.Seconds <= x.P75 && x.P75 <= x.P90, "%+v", x)
		require.Equal(t, x.Calls < bench.MinCalls || x.P75-x.P25 > bench.MaxSpread*x.Seconds, x.Doubt != "", "%+v", x)
	}
	require.Equal(t, map[string]int{"simd/fwd_generic": 4, "simd/bwd_generic": 4, "wasm/fwd_simd128": 4, "wasm/bwd_simd128": 4,
		"wasm/fwd_scalar": 4, "wasm/bwd_scalar": 4, "wasm/decode_simd128": 4}, kernels)

	again, err := bench.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, r, again, "the file is what was printed, and reading loses nothing")
}

func TestBenchTooLarge(t *testing.T) {
	for _, args := range [][]string{{"--seq", "900000000", "--heads", "1"}, {"--problem", "b1-h1-g1-n900000000-m900000000-d64-f32"}} {
		code, stdout, stderr := flashrun(t, append([]string{"bench"}, args...)...)
		require.Equal(t, exitUsage, code)
		require.Empty(t, stdout)
		require.Contains(t, stderr, args[0]+" "+args[1])
		require.Contains(t, stderr, "free")
	}
}

// By default each backend has one kernel for each pass, and dispatch runs one.
func TestBenchChosen(t *testing.T) {
	r := benchResults(t, "--seq", "16", "--backend", "simd,wasm")
	require.Len(t, r.Results, 4)
	for i, backend := range []string{"simd", "wasm", "simd", "wasm"} {
		require.Equal(t, backend, r.Results[i].Backend)
	}
	r = benchResults(t, "--seq", "16", "--kernels", "all")
	chosen := map[string]int{}
	for _, x := range r.Results {
		if x.Chosen {
			chosen[x.Pass]++
		}
	}
	require.Equal(t, map[string]int{"forward": 1, "backward": 1}, chosen)
}

func TestBenchCSV(t *testing.T) {
	out := ok(t, quickBench("--seq", "16", "--pass", "fwd", "--backend", "simd/fwd_generic", "--csv")...)
	require.True(t, strings.HasPrefix(out, "problem,pass,kernel,backend,memory,chosen,batch,heads,kv_heads,q_len,kv_len,head_dim,v_dim,dtype,"+
		"calls,seconds,p10_seconds,p90_seconds,predicted_seconds,gflops,intensity,bytes_per_second,extra_bytes,peak_bytes,p25_seconds,p75_seconds,doubt\n"), out)
	rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.Equal(t, []string{"b1-h2-g2-n16-m16-d64-f32", "forward", "simd/fwd_generic", "simd", "host"}, rows[1][:5])
	require.Equal(t, []string{"1", "2", "2", "16", "16", "64", "64", "f32"}, rows[1][6:14])
}

// A line of a Go benchmark is a name that ends in GOMAXPROCS, the iterations, and pairs of number
// and unit. benchstat splits the key=value parts of the name.
func TestBenchstat(t *testing.T) {
	r := &bench.Results{Machine: machine.Info{OS: "linux", Arch: "amd64", CPU: "a CPU", GOMAXPROCS: 4}, Results: []bench.Result{
		{Problem: "b1-h2-g2-n16-m16-d64-f32", Pass: "forward", Backend: "simd", Kernel: "simd/fwd_avx2", Memory: "host",
			Seconds: .002, Calls: 6, Rounds: []float64{.002, .001}, GFLOPS: 10}}}
	var out bytes.Buffer
	require.NoError(t, r.WriteBenchstat(&out))
	const name = "BenchmarkAttention/pass=forward/problem=b1-h2-g2-n16-m16-d64-f32/backend=simd/kernel=fwd_avx2/memory=host-4"
	require.Equal(t, "goos: linux\ngoarch: amd64\npkg: github.com/flashkit-go/flashkit/cmd/flashrun\ncpu: a CPU\n"+
		name+"\t3\t2000000.0 ns/op\t10.00 GFLOP/s\n"+name+"\t3\t1000000.0 ns/op\t20.00 GFLOP/s\n", out.String())

	line := regexp.MustCompile(`^Benchmark\S+-\d+\t\d+\t[\d.]+ ns/op\t[\d.]+ GFLOP/s$`)
	lines := strings.Split(strings.TrimSpace(ok(t, quickBench("--seq", "16", "--backend", "simd", "--benchstat")...)), "\n")
	n := 0
	for _, l := range lines {
		if strings.HasPrefix(l, "Benchmark") {
			require.Regexp(t, line, l)
			n++
		}
	}
	require.GreaterOrEqual(t, n, 2, "both passes, up to two rounds")
}

func TestBenchTable(t *testing.T) {
	out := ok(t, quickBench("--seq", "16", "--backend", "simd/fwd_generic")...)
	require.Contains(t, out, "machine: ")
	require.Regexp(t, `(?m)^pass +problem +kernel +median +p10 +p90 +calls +GFLOP/s +FLOP/B +GB/s +extra$`, out)
	require.Regexp(t, `(?m)^backward +b1-h2-g2-n16-m16-d64-f32 +simd/bwd_generic`, out)

	r := &bench.Results{Limits: []machine.Limit{{Memory: "host", Name: "f32", GFLOPS: 200, How: "measured"}, {Memory: "host", Name: "copy", BytesPerSecond: 5e9, How: "measured"}},
		Results: []bench.Result{{Problem: "b1-h2-g2-n16-m16-d64-f32", Pass: "forward", Kernel: "x/y", Memory: "host", Chosen: true, Seconds: 1, GFLOPS: 50},
			{Problem: "b1-h2-g2-n16-m16-d64-f32", Pass: "forward", Kernel: "z/y", Memory: "device", Seconds: 1, GFLOPS: 50}},
		Skipped:     []bench.CaseError{{Problem: "b1-h2-g2-n8-m8-d64-f32", Pass: "backward"}},
		Interrupted: true}
	var text bytes.Buffer
	require.NoError(t, r.WriteTable(&text))
	for _, want := range []string{"200.0 GFLOP/s (measured)", "5.0 GB/s", "x/y *", "kernel  memory", "z/y     device", "of limit", " 25% ", "no kernel: b1-h2-g2-n8-m8-d64-f32, backward pass", "interrupted"} {
		require.Contains(t, text.String(), want)
	}
}

func TestCompareCommand(t *testing.T) {
	old := filepath.Join(t.TempDir(), "old.json")
	args := []string{"--seq", "16", "--backend", "simd/fwd_generic"}
	ok(t, quickBench(append(args, "--out", old)...)...)
	out := ok(t, quickBench(append(args, "--compare", old)...)...)
	require.Regexp(t, `geometric mean of [12]: |no geometric mean: `, out)
	r := benchResults(t, append(args, "--compare", old)...)
	require.Len(t, r.Comparison.Pairs, 2)
	ratios := 0
	for _, x := range r.Comparison.Pairs {
		require.Equal(t, x.Doubt == "", x.Ratio > 0, "%+v", x)
		if x.Ratio > 0 {
			ratios++
		}
	}
	if ratios > 0 {
		require.Equal(t, ratios, r.Comparison.Mean.Cases)
	} else {
		require.Nil(t, r.Comparison.Mean)
	}
}

// Ctrl-C keeps finished cases: the results are written, marked, and valid.
func TestBenchInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := filepath.Join(t.TempDir(), "partial.json")
	var stdout, stderr bytes.Buffer
	args := []string{"bench", "--limits=false", "--backend", "simd", "--seq", "16:2048:+1", "--time-per-case", "5ms", "--json", "--out", out}
	time.AfterFunc(300*time.Millisecond, cancel)
	require.Equal(t, exitInterrupted, execute(ctx, args, &stdout, &stderr))
	require.Equal(t, 1, strings.Count(stderr.String(), "\n"), stderr.String())
	require.Contains(t, stderr.String(), "of 4066 cases")
	var printed bench.Results
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &printed))
	require.True(t, printed.Interrupted)
	require.Less(t, len(printed.Results), 4066)
	text, err := os.ReadFile(out)
	require.NoError(t, err)
	require.Equal(t, stdout.String(), string(text))
	for _, x := range printed.Results {
		require.Positive(t, x.Calls)
		require.Positive(t, x.Seconds)
	}

	// Also when nothing is done yet, and in every format.
	for _, format := range []string{"--json", "--csv", "--benchstat", "--limits=false"} {
		stdout.Reset()
		require.Equal(t, exitInterrupted, execute(ctx, []string{"bench", "--limits=false", "--seq", "16", format}, &stdout, &stderr))
		require.NotEmpty(t, stdout.String(), format)
	}
}

func TestBenchHelpAndCompletion(t *testing.T) {
	help := ok(t, "bench", "--help")
	require.Contains(t, help, "flashrun bench --seq 128:16384:x2 --head-dim 64,128 --causal=both --dtype f32,bf16 --pass fwd,bwd")
	for flag, want := range map[string]string{"--dtype": "bf16", "--pass": "bwd", "--kernels": "all", "--memory": "device",
		"--backend": "simd/fwd_generic"} {
		_, out, _ := flashrun(t, "__complete", "bench", flag, "")
		require.Contains(t, out, want+"\n", flag)
	}
	_, out, _ := flashrun(t, "__complete", "bench", "--causal=")
	require.Contains(t, out, "both\n")
	_, out, _ = flashrun(t, "__complete", "bench", "--dtype", "f16,")
	require.Contains(t, out, "f16,bf16\n", "the last element of a list")
}

func TestRandomAndAGrid(t *testing.T) {
	code, _, stderr := flashrun(t, "bench", "--random", "3", "--seq", "64")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "--random")
}
