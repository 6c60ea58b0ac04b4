package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/dispatch"
)

// traceFile writes a trace and returns its path.
func traceFile(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "mine.trace")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// allOfTrace has everything that a trace may say.
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

func liveJSON(t *testing.T, args ...string) *liveReport {
	t.Helper()
	var r liveReport
	d := json.NewDecoder(strings.NewReader(ok(t, append(args, "--json")...)))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&r))
	require.False(t, d.More(), "one object")
	require.Equal(t, resultsFormat, r.Format)
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

func TestLiveRegret(t *testing.T) {
	path := traceFile(t, "fwd "+small+" calls=12")
	out := ok(t, "bench", "--regret=live", "--trace", path, "--runs", "1")
	require.Regexp(t, `(?m)^trace +kernels that ran +calls +runs +live regret +worst run +raw +worst call +steady$`, out)
	require.Contains(t, out, "the geometric mean of live regret is ")
	require.NotContains(t, out, "steady choice takes", "two calls are no steady choice")
	r := liveJSON(t, "bench", "--regret=live", "--trace", path, "--trace", path, "--runs", "3")
	require.Len(t, r.Traces, 2)
	for _, x := range r.Traces {
		require.Len(t, x.Runs, 3)
		require.LessOrEqual(t, x.Regret, x.Worst)
		n := 0
		for _, calls := range x.Kernels {
			n += calls
		}
		require.Equal(t, 36, n)
	}
}

// The sums of a run are those of its medians, and what counts as steady ran after
// the first calls.
func TestLiveResult(t *testing.T) {
	tr, err := parseTrace("", "fwd "+small+" calls=12\nfwd b1-h2-g1-n7-m9-d8-f32 calls=6")
	require.NoError(t, err)
	l := &life{groups: tr.groups()}
	times := func(ms ...int) (list []time.Duration) {
		for _, x := range ms {
			list = append(list, time.Duration(x)*time.Millisecond)
		}
		return list
	}
	l.groups[0].kernels = []*timedKernel{{name: "x/slow", ran: 10, times: times(4, 90, 3)}, {name: "x/fast", times: times(2, 2)}, {name: "x/late", ran: 2, late: 2, times: times(6)}}
	l.groups[1].kernels = []*timedKernel{{name: "x/slow", ran: 6, late: 6, row: 5, times: times(3)}, {name: "x/fast", times: times(2)}}
	l.groups[0].spent, l.groups[0].idle = 24*time.Millisecond, times(1, 1, 7)
	l.groups[0].seconds, l.groups[1].seconds = .1, .028
	r := l.result()
	require.InDelta(t, 10*.004+2*.006+6*.003, r.Chosen, 1e-12)
	require.InDelta(t, 18*.002, r.Best, 1e-12)
	require.InDelta(t, .012, r.Overhead, 1e-12, "beyond the usual")
	require.InDelta(t, (r.Chosen+.012)/r.Best, r.Regret, 1e-12)
	require.InDelta(t, .128/.036, r.Raw, 1e-12)
	require.Equal(t, "x/late", r.WorstCall.Kernel)
	require.InDelta(t, 3, r.WorstCall.Ratio, 1e-12)
	require.Equal(t, lasting{Problem: "b1-h2-g1-n7-m9-d8-f32", Pass: "forward", Kernel: "x/slow", Best: "x/fast", Calls: 5, Ratio: 1.5}, *r.WorstSteady)

	worse := *r
	worse.Regret = 2 * r.Regret
	report := &liveReport{Traces: []*liveTrace{{Trace: "a", Kernels: map[string]int{}}, {Trace: "b", Kernels: map[string]int{}}, {Trace: "no run"}}}
	report.Traces[0].add(r)
	report.Traces[1].add(&worse)
	report.Traces[1].add(&worse)
	report.sum()
	require.Len(t, report.Traces, 2)
	require.Equal(t, "b", report.WorstTrace)
	require.Equal(t, worstRun{"b", worse.Regret}, report.WorstRun)
	require.InEpsilon(t, r.Regret*1.41421356, report.Mean, 1e-6)
	require.Equal(t, map[string]int{"x/slow": 32, "x/late": 4}, report.Traces[1].Kernels)
	require.Equal(t, "a", report.WorstSteady.Trace)
}

// A run that fails says why, and does not end the others.
func TestReplayFails(t *testing.T) {
	tr, err := parseTrace("mine", "fwd "+small)
	require.NoError(t, err)
	show := newProgress(&bytes.Buffer{})
	defer show.done()
	r, ended := replayAll(t.Context(), []*callTrace{tr}, machine{}, liveOptions{"tpu", 1, 2}, show)
	require.ErrorContains(t, ended, "2 runs failed, the first one was of mine: ")
	require.Len(t, r.Failures, 2)
	require.Equal(t, "mine", r.Failures[0].Trace)
	require.Contains(t, r.Failures[0].Error, "backend = tpu")
	var out bytes.Buffer
	require.NoError(t, r.writeTable(&out))
	require.Contains(t, out.String(), "failed: mine: ")

	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = replay(stopped, tr, "auto", 1)
	require.ErrorIs(t, err, context.Canceled)
	_, err = live(stopped, tr, "auto", 1)
	require.ErrorIs(t, err, context.Canceled)
}

// A crowd is as large as it is told to be, and nobody is left of it.
func TestCrowd(t *testing.T) {
	var c crowd
	defer c.close()
	require.NoError(t, c.set(t.Context(), 2))
	all := c.burning
	require.Len(t, all, 2)
	require.NoError(t, c.set(t.Context(), 1))
	require.NotNil(t, all[1].ProcessState, "it was waited for")
	require.Nil(t, all[0].ProcessState)
	c.close()
	require.NotNil(t, all[0].ProcessState)

	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, c.set(ctx, 1))
	cancel()
	require.ErrorIs(t, c.burning[0].Wait(), context.Canceled, "it ends with its standard input")
}

// The first phase runs what the dispatcher chooses, and sees it all.
func TestLifeSeesEveryCall(t *testing.T) {
	tr, err := parseTrace("", "fwd "+small+" calls=20\nfwd "+small+" calls=9 callers=4")
	require.NoError(t, err)
	d := dispatch.All(t.Context())
	defer d.Close()
	l := &life{trace: tr, groups: tr.groups(), parts: make([][]stepPart, 2), order: rand.New(rand.NewPCG(1, 1))}
	for i, g := range l.groups {
		l.parts[i] = []stepPart{{g.spans[0], g}}
	}
	l.player, err = newPlayer(t.Context(), tr, newMaker(d, 1))
	require.NoError(t, err)
	chosen, err := d.With("simd/fwd_generic")
	require.NoError(t, err)
	require.NoError(t, l.replay(t.Context(), chosen))
	require.Equal(t, []string{"simd/fwd_generic", "simd/fwd_generic"}, l.last)
	require.Equal(t, 20, l.groups[0].kernels[0].ran)
	require.Equal(t, 10, l.groups[0].kernels[0].late)
	require.Equal(t, 9, l.groups[1].kernels[0].late)
}

func TestTraceCompletion(t *testing.T) {
	_, out, _ := flashrun(t, "__complete", "bench", "--trace", "")
	require.Contains(t, out, "layers\n")
	require.Contains(t, out, builtinTraces+"\n")
	_, out, _ = flashrun(t, "__complete", "bench", "--regret=")
	require.Contains(t, out, regretLive+"\n")
	_, out, _ = flashrun(t, "__complete", "")
	require.NotContains(t, out, "replay", "it is for flashrun itself")
}
