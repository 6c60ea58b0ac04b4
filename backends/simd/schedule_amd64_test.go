//go:build !noasm && !purego

package simd

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// The schedules are simulated for more workers than a machine at hand has, with
// times in units of what one key costs one tile of query rows. A tile costs
// some keys more for loading, transposing and storing. The figures come from the
// slope and the intercept of BenchmarkTileCosts.
const (
	fwdTileCost = 50
	bwdTileCost = 35 // of a block of keys, for each tile that it visits
)

// simulateForward returns what part of their time workers are idle.
func simulateForward(isa *laneISA, p flashkit.Problem, workers int) float64 {
	j := &job{p: p, workers: workers}
	isa.plan(j, itemRows)
	rows := j.group * isa.lanes
	busy, free := 0.0, make([]float64, workers)
	for item := range p.Batch * p.Heads * tiles(p.QLen, rows) {
		from, _ := j.laneItem(item, rows)
		cost := 0.0
		for r := from; r < min(from+rows, p.QLen); r += isa.lanes {
			first, _ := p.Keys(r)
			_, last := p.Keys(min(r+isa.lanes, p.QLen) - 1)
			cost += fwdTileCost + float64(max(0, last-first))
		}
		busy += cost
		*earliest(free) += cost
	}
	return idle(busy, free)
}

// simulateBackward does the same for the blocks of keys, whose last fifth of
// each tile waits for the block before.
func simulateBackward(isa *laneISA, p flashkit.Problem, workers int) float64 {
	j := &job{p: p, workers: workers}
	j.planBlocks(bwdRows, bwdBlockK, minBlockK)
	heads, count := p.Batch*p.KVHeads, tiles(p.QLen, isa.lanes)
	busy, free := 0.0, make([]float64, workers)
	passed := make([][]float64, heads) // when the block before passed each tile
	for item := range heads * tiles(p.KVLen, j.keys) {
		before, own := passed[item%heads], make([]float64, count)
		from := item / heads * j.keys
		to := min(from+j.keys, p.KVLen)
		first, _ := p.Queries(from)
		_, last := p.Queries(to - 1)
		worker := earliest(free)
		now := *worker
		for t := count - 1; t >= 0; t-- {
			if t >= first/isa.lanes && t <= (last-1)/isa.lanes {
				lo, _ := p.Keys(t * isa.lanes)
				_, hi := p.Keys(min((t+1)*isa.lanes, p.QLen) - 1)
				cost := bwdTileCost + float64(max(0, min(hi, to)-max(lo, from)))
				busy += cost
				now += cost * 4 / 5
				if before != nil {
					now = max(now, before[t])
				}
				now += cost / 5
			}
			own[t] = now
		}
		*worker, passed[item%heads] = now, own
	}
	return idle(busy, free)
}

func earliest(free []float64) *float64 {
	at := 0
	for i, x := range free {
		if x < free[at] {
			at = i
		}
	}
	return &free[at]
}

func idle(busy float64, free []float64) float64 {
	end := 0.0
	for _, x := range free {
		end = max(end, x)
	}
	return 1 - busy/(end*float64(len(free)))
}

func TestBalance(t *testing.T) {
	simulations := []struct {
		name    string
		of      func(isa *laneISA, p flashkit.Problem, workers int) float64
		problem string
		upTo    int // workers
		limit   float64
	}{
		{"forward", simulateForward, "b1-h8-g8-n8192-m8192-d64-f32-causal", 64, 0.05},
		{"forward", simulateForward, "b1-h8-g8-n8192-m8192-d64-f32-causal", 128, 0.10},
		{"forward", simulateForward, "b1-h8-g8-n8192-m8192-d64-f32", 64, 0.10},
		{"forward", simulateForward, "b1-h8-g8-n8192-m8192-d64-f32-window512.0", 64, 0.10},
		{"forward", simulateForward, "b1-h1-g1-n8192-m8192-d64-f32-causal", 16, 0.05},
		{"backward", simulateBackward, "b1-h8-g8-n8192-m8192-d64-f32-causal", 64, 0.10},
		{"backward", simulateBackward, "b1-h8-g8-n8192-m8192-d64-f32", 64, 0.10},
		{"backward", simulateBackward, "b1-h1-g1-n8192-m8192-d64-f32-causal", 16, 0.10},
		{"backward", simulateBackward, "b1-h1-g1-n8192-m8192-d64-f32", 16, 0.10},
	}
	for _, s := range simulations {
		p, err := flashkit.ParseProblem(s.problem)
		require.NoError(t, err)
		for _, isa := range []*laneISA{{lanes: 32}, {lanes: 16}} {
			worst, at := math.Inf(-1), 0
			for workers := 1; workers <= s.upTo; workers++ {
				if x := s.of(isa, p, workers); x > worst {
					worst, at = x, workers
				}
			}
			t.Logf("%s of %s, %d lanes: idle at most %.1f%% (%d workers of 1 to %d), %.1f%% with %d", s.name, p, isa.lanes,
				100*worst, at, s.upTo, 100*s.of(isa, p, s.upTo), s.upTo)
			assert.Less(t, worst, s.limit, "%s of %s, %d lanes, %d workers", s.name, p, isa.lanes, at)
		}
	}
}
