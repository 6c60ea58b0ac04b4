package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/replay"
)

// traceFile writes a trace and returns its path.
func traceFile(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "mine.trace")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func liveJSON(t *testing.T, args ...string) *replay.Report {
	t.Helper()
	var r replay.Report
	d := json.NewDecoder(strings.NewReader(ok(t, append(args, "--json")...)))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&r))
	require.False(t, d.More(), "one object")
	require.Equal(t, bench.Format, r.Format)
	require.False(t, r.Interrupted)
	require.Empty(t, r.Failures)
	return &r
}

func TestReplayTrace(t *testing.T) {
	path := traceFile(t, allOfTrace)
	r := liveJSON(t, "bench", "--trace", path)
	require.Len(t, r.Traces, 1)
	x := r.Traces[0]
	require.Equal(t, path, x.Trace)
	require.Equal(t, 1, x.Procs)
	require.Equal(t, "cpu.avx512f=off", x.Godebug)
	require.Equal(t, 25, x.Calls)
	require.Len(t, x.Runs, 1, "one run unless more are asked for")
	run := x.Runs[0]
	require.Len(t, run.Groups, 6)
	var seconds, overhead float64
	calls := 0
	for _, g := range run.Groups {
		ran := 0
		for _, k := range g.Kernels {
			ran += k.Calls
			require.Positive(t, k.Seconds, "%s: %+v", g.Problem, k)
			require.True(t, k.Calls == 0 || k.Timed >= 5, "%s: %+v", g.Problem, k)
			require.NotContains(t, k.Kernel, "avx512", "it is turned off")
		}
		require.Equal(t, g.Calls, ran)
		require.GreaterOrEqual(t, g.Ratio, 1.0)
		require.Positive(t, g.First)
		require.NotEmpty(t, g.Best)
		calls, seconds, overhead = calls+g.Calls, seconds+g.Seconds, overhead+g.Extra
	}
	require.Equal(t, 25, calls)
	require.InEpsilon(t, run.Seconds, seconds, 1e-9)
	require.InDelta(t, run.Overhead, overhead, 1e-12)
	require.InEpsilon(t, (run.Chosen+run.Overhead)/run.Best, run.Regret, 1e-9)
	require.InEpsilon(t, run.Seconds/run.Best, run.Raw, 1e-9)
	require.GreaterOrEqual(t, run.Regret, 1.0)
	require.NotNil(t, run.WorstCall)
	require.NotNil(t, run.WorstSteady)
	require.Equal(t, run.Regret, r.Worst)

	out := ok(t, "bench", "--trace", path, "--backend", "simd/fwd_generic")
	require.Contains(t, out, "\ntrace "+path+", 25 calls\n")
	require.Regexp(t, `(?m)^forward +b1-h2-g1-n1-m8-d8-f32 to m11 +simd/fwd_generic 4 +simd/fwd_generic +4 .* 1\.000$`, out)
	require.Regexp(t, `(?m)^backward +b1-h2-g2-n8-m8-d8-f32 busy=1 +simd/bwd_generic 2 `, out)
	require.Regexp(t, `(?m)^live regret [\d.]+: \S+ on the kernels that ran and \S+ in dispatch, \S+ on the best ones; raw `, out)
}

func TestTraceCompletion(t *testing.T) {
	_, out, _ := flashrun(t, "__complete", "bench", "--trace", "")
	require.Contains(t, out, "layers\n")
	require.Contains(t, out, replay.Builtin+"\n")
	_, out, _ = flashrun(t, "__complete", "")
	require.NotContains(t, out, "replay", "it is for flashrun itself")
}

// allOfTrace has every statement of traces.
const allOfTrace = `procs 1
godebug cpu.avx512f=off
fwd b1-h2-g1-n1-m6-d8-f32 calls=6 grow=1   # two powers of two
loop 3
  fwd b1-h2-g2-n16-m16-d8-f32 calls=2 touch=64KiB pause=100us
  bwd b1-h2-g2-n16-m16-d8-f32
end
fwd b1-h2-g2-n8-m8-d8-bf16-causal calls=8 callers=3
bwd b1-h2-g2-n8-m8-d8-f32 calls=2 busy=1
`
