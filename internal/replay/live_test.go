package replay

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// The sums of a run are of its medians, and steady choices ran after the first calls.
func TestLiveResult(t *testing.T) {
	tr, err := parseTrace("", "fwd "+small+" calls=12\nfwd b1-h2-g1-n7-m9-d8-f32 calls=6")
	require.NoError(t, err)
	l := &liveRun{groups: tr.groups()}
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
	require.Equal(t, lastingChoice{Problem: "b1-h2-g1-n7-m9-d8-f32", Pass: "forward", Kernel: "x/slow", Best: "x/fast", Calls: 5, Ratio: 1.5}, *r.WorstSteady)

	worse := *r
	worse.Regret = 2 * r.Regret
	report := &Report{Traces: []*TraceRuns{{Trace: "a", Kernels: map[string]int{}}, {Trace: "b", Kernels: map[string]int{}}, {Trace: "no run"}}}
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

// A failed run gives the reason and does not end the others.
func TestReplayFails(t *testing.T) {
	needProcesses(t)
	tr, err := parseTrace("mine", "fwd "+small)
	require.NoError(t, err)
	show := terminal.NewProgress(&bytes.Buffer{})
	defer show.Done()
	r, ended := Run(t.Context(), []*Trace{tr}, machine.Info{}, Options{"tpu", 1, 2}, show)
	require.ErrorContains(t, ended, "2 runs failed, the first one was of mine: ")
	require.Len(t, r.Failures, 2)
	require.Equal(t, "mine", r.Failures[0].Trace)
	require.Contains(t, r.Failures[0].Error, "backend = tpu")
	var out bytes.Buffer
	require.NoError(t, r.WriteTable(&out))
	require.Contains(t, out.String(), "failed: mine: ")

	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = replay(stopped, tr, "auto", 1)
	require.ErrorIs(t, err, context.Canceled)
	_, err = live(stopped, tr, "auto", 1)
	require.ErrorIs(t, err, context.Canceled)
}

// A crowd has the requested size, and none remain afterwards.
func TestCrowd(t *testing.T) {
	needProcesses(t)
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

// The first phase runs dispatch's choices, and observes every call.
func TestLifeSeesEveryCall(t *testing.T) {
	tr, err := parseTrace("", "fwd "+small+" calls=20\nfwd "+small+" calls=9 callers=4")
	require.NoError(t, err)
	d := dispatch.All(t.Context())
	defer d.Close()
	l := &liveRun{trace: tr, groups: tr.groups(), parts: make([][]stepPart, 2), order: rand.New(rand.NewPCG(1, 1))}
	for i, g := range l.groups {
		l.parts[i] = []stepPart{{g.spans[0], g}}
	}
	l.player, err = newPlayer(t.Context(), tr, input.NewMaker(d, 1))
	require.NoError(t, err)
	chosen, err := d.With("simd/fwd_generic")
	require.NoError(t, err)
	require.NoError(t, l.replay(t.Context(), chosen))
	require.Equal(t, []string{"simd/fwd_generic", "simd/fwd_generic"}, l.last)
	require.Equal(t, 20, l.groups[0].kernels[0].ran)
	require.Equal(t, 10, l.groups[0].kernels[0].late)
	require.Equal(t, 9, l.groups[1].kernels[0].late)
}
