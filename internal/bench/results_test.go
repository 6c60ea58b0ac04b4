package bench

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/machine"
)

func TestQuantile(t *testing.T) {
	require.Equal(t, 7.0, Quantile([]float64{7}, .9))
	require.Equal(t, 2.5, Quantile([]float64{1, 2, 3, 4}, .5))
	require.InDelta(t, 1.4, Quantile([]float64{1, 2, 3, 4, 5}, .1), 1e-12)
	require.Equal(t, 5.0, Quantile([]float64{1, 2, 3, 4, 5}, 1))
}

func TestCompare(t *testing.T) {
	at := func(problem string, seconds, spread float64) Result {
		return Result{Problem: problem, Pass: "forward", Kernel: "simd/fwd_avx2", Memory: "host", Seconds: seconds, P10: seconds - spread, P90: seconds + spread}
	}
	before := &Results{Machine: machine.Info{CPU: "old"}, Results: []Result{at("a", 2, .1), at("b", 1, .1), at("only old", 1, 0), at("c", 1, 1)}}
	now := &Results{Results: []Result{at("b", 4, .1), at("a", 1, .1), at("only new", 1, 0), at("also new", 1, 0), at("c", 1, 0)}}
	c := Compare("old.json", before, now)
	ratios, apart := map[string]float64{}, map[string]bool{}
	for _, p := range c.Pairs {
		ratios[p.Problem], apart[p.Problem] = p.Ratio, p.Apart
	}
	require.Equal(t, map[string]float64{"a": .5, "b": 4, "c": 1}, ratios)
	require.Equal(t, map[string]bool{"a": true, "b": true, "c": false}, apart)
	require.InDelta(t, 1.2599, c.Mean.Ratio, 1e-4, "the cube root of 2")
	require.Equal(t, []int{3, 1, 2}, []int{c.Mean.Cases, c.OnlyOld, c.OnlyNew})
	var out bytes.Buffer
	c.writeTable(&out, machine.Info{CPU: "new"})
	for _, want := range []string{"old.json", "another machine", "0.500", "~ 1.000", "geometric mean of 3: 1.260", "not in both: 1 before, 2 now"} {
		require.Contains(t, out.String(), want)
	}

	now.Results = now.Results[2:3]
	c = Compare("old.json", before, now)
	require.Nil(t, c.Mean)
	out.Reset()
	c.writeTable(&out, machine.Info{})
	require.Contains(t, out.String(), "no case is in both")
}
