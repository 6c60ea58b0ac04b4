package bench

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// The rule: five calls, and quartiles within a fifth of the median.
func TestDoubt(t *testing.T) {
	for _, x := range []struct {
		result Result
		want   string
	}{
		{Result{Calls: 5, Seconds: 1, P25: .95, P75: 1.14}, ""},
		{Result{Calls: 1, Seconds: 1, P25: 1, P75: 1}, "1 call"},
		{Result{Calls: 4, Seconds: 1, P25: 1, P75: 1}, "4 calls"},
		{Result{Calls: 900, Seconds: 1, P25: .9, P75: 1.2}, "quartiles 30% apart"},
		{Result{Calls: 900, Seconds: 1e-300, P25: 1, P75: 1e300}, "quartiles over 1000% apart"},
		{Result{Calls: 900}, ""},
		{Result{Calls: 900, Seconds: 1, P10: .9, P90: 1.2}, ""},
		{Result{Calls: 900, Seconds: 1, P10: .8, P90: 1.5}, "quartiles 35% apart"}, // older results have no quartiles
	} {
		x.result.judge()
		require.Equal(t, x.want, x.result.Doubt, "%+v", x.result)
	}
	r, ok := newResult(flashkit.Problem{}, flashkit.Kernel{Cost: func(*flashkit.Call) time.Duration { return 1 }}, 1, [][]time.Duration{{1, 2, 3, 4}, {5}})
	require.True(t, ok)
	require.Equal(t, []float64{2e-9, 4e-9}, []float64{r.P25, r.P75})
}

// The signs of a busy machine form one sentence.
func TestUnrest(t *testing.T) {
	case1 := func(gflops, quartile float64) Result {
		return Result{Problem: "b1-h1-g1-n8-m8-d8-f32", Memory: machine.Host, Calls: 9, Seconds: 1, P25: 1 - quartile, P75: 1 + quartile, GFLOPS: gflops}
	}
	quiet := Results{Machine: machine.Info{GOMAXPROCS: 2}, Load: &machine.Load{Others: .1, Steal: .01, CPUs: 2}, Limits: []machine.Limit{{Memory: machine.Host, Name: "f32", GFLOPS: 10}},
		Results: []Result{case1(9, 0), case1(9, .05), case1(8, .04), case1(9, .5)}}
	quiet.Judge()
	require.Equal(t, "", quiet.Busy)
	require.Equal(t, 1, quiet.Doubtful())

	busy := quiet
	busy.Load = &machine.Load{Others: 3, Steal: .5, CPUs: 2}
	busy.Results = []Result{case1(11, .05), case1(9, 1), case1(9, 1)}
	busy.Judge()
	require.Equal(t, "The machine was busy: other programs used 2.0 of its 2 processors; its hypervisor gave 50% of its time to others; calls of 2 of 3 cases differ widely; rates of 1 of 3 cases exceed the limits.", busy.Busy)
	var out bytes.Buffer
	require.NoError(t, busy.WriteTable(&out))
	require.Contains(t, out.String(), "? 2 of 3 medians are in doubt: fewer than 5 calls, or quartiles more than 20% of the median apart\nThe machine was busy: ")
	require.Regexp(t, `\? 1s .* -  `, out.String(), "no share of the limit")

	large := quiet
	large.Load = &machine.Load{Others: 50, CPUs: 64}
	large.Judge()
	require.Equal(t, "", large.Busy, "two of 64 processors are free")
}

// A slow kernel gets five calls if they fit into ten times the time of a case. Otherwise it gets
// one, in doubt. A first call that something else delayed does not count.
func TestFewCalls(t *testing.T) {
	problems, err := ParseProblems([]string{"b1-h1-g1-n4-m4-d4-f32"})
	require.NoError(t, err)
	for _, x := range []struct {
		rounds       int
		first, takes time.Duration
		least        int
		most         int
	}{
		{1, 12 * time.Millisecond, 12 * time.Millisecond, MinCalls, MinCalls}, {3, 12 * time.Millisecond, 12 * time.Millisecond, MinCalls, MinCalls},
		{1, 40 * time.Millisecond, 40 * time.Millisecond, 1, 1}, {6, 40 * time.Millisecond, time.Millisecond, 6, 60},
	} {
		how := Settings{Kernels: "all", Rounds: x.rounds, TimePerCase: .010, Seed: 1}
		b := New(how, []flashkit.Pass{flashkit.PassForward}, []string{machine.Host}, false)
		require.NoError(t, b.Open(t.Context(), "simd/fwd_generic"))
		b.show = terminal.NewProgress(&bytes.Buffer{})
		b.order = rand.New(rand.NewPCG(1, 1))
		slow := &timedCase{problem: problems[0], kernel: b.kernels[0], memory: machine.Host, flops: 1, close: func() error { return nil }}
		calls := 0
		slow.call = func(context.Context) (time.Duration, error) {
			if calls++; calls == 1 {
				return x.first, nil
			}
			return x.takes, nil
		}
		require.NoError(t, b.warmUp(t.Context(), slow))
		require.NoError(t, b.takeTurns(t.Context(), []*timedCase{slow}))
		b.keep([]*timedCase{slow})
		require.Len(t, b.Results.Results, 1)
		r := b.Results.Results[0]
		require.True(t, x.least <= r.Calls && r.Calls <= x.most, "%d calls of %v", r.Calls, x)
		b.Results.Judge()
		require.Equal(t, r.Calls < MinCalls, b.Results.Results[0].Doubt != "")
		require.NoError(t, b.Close())
		b.show.Done()
	}
}

// A case in doubt on either side is listed without a ratio.
func TestCompareDoubt(t *testing.T) {
	at := func(problem string, seconds float64, calls int) Result {
		return Result{Problem: problem, Pass: "forward", Kernel: "simd/fwd_avx2", Memory: "host", Seconds: seconds, P25: seconds, P75: seconds, Calls: calls}
	}
	before, now := &Results{Results: []Result{at("a", 731, 1), at("b", 2, 9), at("c", 1, 9)}}, &Results{Results: []Result{at("a", 1, 9), at("b", 1, 9), at("c", 1, 3)}}
	before.Judge()
	now.Judge()
	c := Compare("old.json", before, now)
	require.Len(t, c.Pairs, 3)
	require.Equal(t, []float64{0, .5, 0}, []float64{c.Pairs[0].Ratio, c.Pairs[1].Ratio, c.Pairs[2].Ratio})
	require.Equal(t, []string{"before 1 call", "", "now 3 calls"}, []string{c.Pairs[0].Doubt, c.Pairs[1].Doubt, c.Pairs[2].Doubt})
	require.Equal(t, meanRatio{.5, 1}, *c.Mean)
	c = Compare("old.json", before, &Results{Results: now.Results[2:]})
	require.Nil(t, c.Mean)
	var out bytes.Buffer
	c.writeTable(&out, machine.Info{})
	require.Contains(t, out.String(), "no geometric mean: a median of every case is in doubt")
}

// A problem whose choice or best kernel is in doubt is not in the sums.
func TestRegretDoubt(t *testing.T) {
	racers := func(chosen, best []time.Duration) []*racer {
		return []*racer{{kernel: flashkit.Kernel{Name: "x/chosen"}, times: chosen}, {kernel: flashkit.Kernel{Name: "x/best"}, times: best}, {kernel: flashkit.Kernel{Name: "x/once"}, times: []time.Duration{90}}}
	}
	sound := newRegret(flashkit.Problem{}, flashkit.PassForward, racers([]time.Duration{20, 20, 20, 20, 21}, []time.Duration{10, 10, 10, 10, 10}))
	require.Equal(t, "", sound.Doubt)
	require.InDelta(t, 2, sound.Ratio, 1e-9)
	few := newRegret(flashkit.Problem{}, flashkit.PassForward, racers([]time.Duration{731}, []time.Duration{1, 1, 1, 1, 1}))
	require.Equal(t, "x/chosen: 1 call", few.Doubt)
	wide := newRegret(flashkit.Problem{}, flashkit.PassForward, racers([]time.Duration{731, 731, 731, 731, 731}, []time.Duration{1, 1, 2, 3, 4}))
	require.Equal(t, "x/best: quartiles 100% apart", wide.Doubt)

	r := &RegretReport{Problems: []regretResult{few, sound, wide}}
	r.sum(&machine.Load{CPUs: 1})
	require.InDelta(t, 2, r.Sum, 1e-9)
	require.InDelta(t, 2, r.Worst, 1e-9)
	var out bytes.Buffer
	require.NoError(t, r.WriteTable(&out))
	require.Contains(t, out.String(), "? 2 of 3 problems have no ratio: a median is in doubt\nThe machine was busy: calls of 2 of 3 cases differ widely.\n1 problems: ")
}
