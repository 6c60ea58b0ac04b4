package simd

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/allocs"
	helpers "github.com/flashkit-go/flashkit/internal/workers"
)

func parsed(t *testing.T, name string) flashkit.Problem {
	p, err := flashkit.ParseProblem(name)
	require.NoError(t, err)
	return p
}

// eachCost calls f for every kernel, and for numbers of workers that most machines
// do not have.
func eachCost(t *testing.T, workers []int, f func(t *testing.T, k flashkit.Kernel)) {
	b := New()
	defer b.Close()
	defer setProcs(runtime.GOMAXPROCS(0))
	for _, n := range workers {
		setProcs(n)
		for _, k := range b.Kernels() {
			if k.Needs == nil {
				continue // a build tag left out the kernel
			}
			t.Run(k.Name, func(t *testing.T) { f(t, k) })
		}
	}
}

func TestCostOfWholeItems(t *testing.T) {
	const item = 1e6
	for _, x := range []struct {
		items, workers int
		longest, want  float64
	}{
		{0, 4, 0, 0},
		{1, 4, 0, item},
		{4, 4, 0, item + 3*helpTime},
		{5, 4, 0, 2*item + 3*helpTime},
		{5, 4, 3 * item, 3*item + 3*helpTime},
		{5, 1, 3 * item, 5 * item},
	} {
		f := timedPhase{x.items, float64(x.items) * item, x.longest}
		assert.Equal(t, x.want, f.time(x.workers), "%+v", x)
	}
}

func TestCostOfMoreWorkers(t *testing.T) {
	many := timedPhase{items: 100003, nanoseconds: 1e10}
	for n := 1; n < 128; n++ {
		assert.LessOrEqual(t, many.time(n+1), many.time(n), "%d workers", n+1)
	}
	before := map[string]time.Duration{}
	eachCost(t, []int{1, 2, 3, 4, 8, 12, 16, 32, 64, 128}, func(t *testing.T, k flashkit.Kernel) {
		for _, name := range []string{"b8-h32-g32-n4096-m4096-d64-bf16", "b64-h32-g8-n1-m65536-d128-bf16"} {
			p := parsed(t, name)
			key, now := k.Name+name, k.Cost(p.Ask(k.Pass))
			if last, ok := before[key]; ok {
				assert.LessOrEqual(t, now, last, "%s with %d workers", name, helpers.Procs())
			}
			before[key] = now
		}
	})
}

// setProcs sets GOMAXPROCS, which the next call sees.
func setProcs(n int) (before int) {
	before = runtime.GOMAXPROCS(n)
	time.Sleep(2 * helpers.ProcsAge)
	return before
}

func TestCostOfNothing(t *testing.T) {
	eachCost(t, []int{1, 16}, func(t *testing.T, k flashkit.Kernel) {
		for _, mask := range []string{"", "-causal", "-window3.5"} {
			p := parsed(t, "b2-h4-g2-n7-m9-d40-bf16"+mask)
			rows, keys, both := p, p, p
			rows.QLen, keys.KVLen = 0, 0
			both.QLen, both.KVLen = 0, 0
			for _, p := range []flashkit.Problem{rows, keys, both} {
				assert.Positive(t, k.Cost(p.Ask(k.Pass)), "%v", p)
				assert.Less(t, k.Cost(p.Ask(k.Pass)), time.Millisecond, "%v", p)
			}
		}
	})
}

func TestCostOfLargerBatch(t *testing.T) {
	eachCost(t, []int{1, 2, 16}, func(t *testing.T, k flashkit.Kernel) {
		for _, name := range []string{
			"b1-h2-g1-n1-m57-d64-f16",
			"b1-h4-g2-n5-m700-d96-bf16-window30.0",
			"b1-h1-g1-n300-m300-d64-f32-causal",
			"b1-h3-g3-n1500-m900-d128-bf16",
		} {
			p, last := parsed(t, name), time.Duration(0)
			for ; p.Batch <= 256; p.Batch *= 2 {
				now := k.Cost(p.Ask(k.Pass))
				assert.GreaterOrEqual(t, now, last, "%v", p)
				last = now
			}
		}
	})
}

func TestCostAllocatesNothing(t *testing.T) {
	p := parsed(t, "b2-h4-g2-n7-m900-d40-bf16-window100.5")
	eachCost(t, []int{2}, func(t *testing.T, k flashkit.Kernel) {
		asked := p.Ask(k.Pass)
		assert.Zero(t, allocs.PerRun(10, func() { k.Cost(asked) }))
	})
}

// A call with features has a longer predicted time. Sequences that are shorter than the problem's
// lengths have a shorter predicted time.
func TestCostOfFeatures(t *testing.T) {
	defer setProcs(runtime.GOMAXPROCS(0))
	setProcs(1) // with more workers, some wait for the longest sequence
	b := New()
	defer b.Close()
	for _, k := range b.Kernels() {
		if k.Needs == nil || k.Takes&flashkit.FeatureRagged == 0 {
			continue
		}
		name := "b4-h4-g2-n300-m500-d64-f32"
		plain := parsed(t, name)
		for _, option := range []string{"-softcap30", "-alibi", "-bias", "-mask", "-dropout0.5"} {
			p := parsed(t, name+option)
			if asked := p.Features(); asked&k.Takes != asked {
				continue
			}
			assert.Greater(t, k.Cost(p.Ask(k.Pass)), k.Cost(plain.Ask(k.Pass)), "%s%s", k.Name, option)
		}
		p := parsed(t, name+"-ragged")
		args := flashkit.NewArgs(p, k.Pass)
		last := k.Cost(p.Ask(k.Pass))
		for _, lens := range [][]int32{{500, 500, 500, 500}, {500, 500, 30, 0}, {100, 100, 30, 0}, {0, 0, 0, 0}} {
			args.Seqs = &flashkit.Sequences{KVLens: lens}
			var c flashkit.Call
			require.NoError(t, c.Set(p, k.Pass, args))
			now := k.Cost(&c)
			assert.LessOrEqual(t, now, last, "%s of keys %v", k.Name, lens)
			assert.Positive(t, now)
			if lens[3] == 500 {
				assert.Equal(t, last, now, "%s of full lengths", k.Name)
			} else {
				assert.Less(t, now, last, "%s of keys %v", k.Name, lens)
			}
			last = now
		}
	}
}
