//go:build !purego

package simd

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// Tests simulate schedules for many workers. The unit of time is one key in one tile of query rows.
// Loading, transposing and storing a tile takes additional time, which BenchmarkTileCosts measures.
const (
	fwdTileCost = 50
	bwdTileCost = 35 // of a block of keys, for each tile that it visits
)

// planFor returns the plan of a call that may have more workers than this machine has.
func planFor(p flashkit.Problem, pass flashkit.Pass, workers int, make func(*plan)) *plan {
	return planned(p.Ask(pass), func(pl *plan) {
		pl.workers = workers
		make(pl)
	})
}

// simulateForward returns the idle fraction of workers with the given speeds.
func simulateForward(isa *laneRoutines, p flashkit.Problem, speeds []float64) float64 {
	j := planFor(p, flashkit.PassForward, len(speeds), isa.planForward)
	j.cutRows()
	return simulateItems(j, isa.lanes, speeds)
}

// simulateTiles does the work of simulateForward for items of planTiles.
func simulateTiles(_ *laneRoutines, p flashkit.Problem, speeds []float64) float64 {
	j := planFor(p, flashkit.PassForward, len(speeds), fwdAMXBF16Plan)
	j.cutRows()
	return simulateItems(j, pairLanes, speeds)
}

func simulateItems(j *plan, lanes int, speeds []float64) float64 {
	p, rows := &j.p, j.rows
	busy, free := 0.0, make([]float64, len(speeds))
	for item := range p.Batch * p.Heads * ceilDiv(p.QLen, rows) {
		_, _, tile := j.byRow.Find(item)
		from := tile * rows
		cost := 0.0
		for r := from; r < min(from+rows, p.QLen); r += lanes {
			first, _ := p.Keys(r)
			_, last := p.Keys(min(r+lanes, p.QLen) - 1)
			cost += fwdTileCost + float64(max(0, last-first))
		}
		busy += cost
		worker := earliest(free)
		free[worker] += cost / speeds[worker]
	}
	return idle(busy, free, speeds)
}

// simulateBackward returns the idle fraction in a backward pass. An item is a block of keys. The
// last fifth of a block's work on a tile waits for the block before.
func simulateBackward(isa *laneRoutines, p flashkit.Problem, speeds []float64) float64 {
	j := planFor(p, flashkit.PassBackward, len(speeds), isa.planBackward)
	j.cutBlocks()
	busy, free := 0.0, make([]float64, len(speeds))
	progress := make([][]float64, p.Batch*p.KVHeads*ceilDiv(p.KVLen, j.keys)) // when each item passed each tile
	for item := range progress {
		x := keyRange{predecessor: -1}
		x.findKeys(j, item)
		own := make([]float64, ceilDiv(p.QLen, j.rows))
		before := own // which holds zeros
		if at := j.predecessor(&x, item); at >= 0 {
			before = progress[at]
		}
		first, end := j.visited(&x.seqTile)
		worker := earliest(free)
		now := free[worker]
		for t := len(own) - 1; t >= 0; t-- {
			if t >= first && t < end {
				lo, _ := p.Keys(t * j.rows)
				_, hi := p.Keys(min((t+1)*j.rows, p.QLen) - 1)
				cost := bwdTileCost + float64(max(0, min(hi, x.to)-max(lo, x.from)))
				busy += cost
				now = max(now+cost*4/5/speeds[worker], before[t]) + cost/5/speeds[worker]
			}
			own[t] = now
		}
		free[worker], progress[item] = now, own
	}
	return idle(busy, free, speeds)
}

func earliest(free []float64) int {
	at := 0
	for i, x := range free {
		if x < free[at] {
			at = i
		}
	}
	return at
}

func idle(busy float64, free, speeds []float64) float64 {
	end, sum := 0.0, 0.0
	for i, x := range free {
		end, sum = max(end, x), sum+speeds[i]
	}
	return 1 - busy/(end*sum)
}

// equal and mixed return speeds of workers. On a shared server, some workers share a core and are
// slower.
func equal(workers int) []float64 { return slices.Repeat([]float64{1}, workers) }

func mixed(workers int) []float64 {
	speeds := equal(workers)
	for i := 3; i < workers; i += 4 {
		speeds[i] = 0.5
	}
	return speeds
}

func TestBalance(t *testing.T) {
	slow.UnderRace(t)
	simulations := []struct {
		name    string
		of      func(isa *laneRoutines, p flashkit.Problem, speeds []float64) float64
		speeds  func(workers int) []float64
		problem string
		upTo    int // workers
		limit   float64
	}{
		{"forward", simulateForward, equal, "b1-h8-g8-n8192-m8192-d64-f32-causal", 64, 0.05},
		{"forward", simulateForward, equal, "b1-h8-g8-n8192-m8192-d64-f32-causal", 128, 0.10},
		{"forward", simulateForward, equal, "b1-h8-g8-n8192-m8192-d64-f32", 64, 0.10},
		{"forward", simulateForward, equal, "b1-h8-g8-n8192-m8192-d64-f32-window512.0", 64, 0.10},
		{"forward", simulateForward, equal, "b1-h1-g1-n8192-m8192-d64-f32-causal", 16, 0.05},
		{"tiles", simulateTiles, equal, "b1-h8-g8-n8192-m8192-d64-f32-causal", 64, 0.05},
		{"tiles", simulateTiles, equal, "b1-h8-g8-n8192-m8192-d64-f32", 64, 0.10},
		{"tiles", simulateTiles, equal, "b1-h8-g8-n8192-m8192-d64-f32-window512.0", 64, 0.15},
		{"tiles", simulateTiles, equal, "b1-h1-g1-n8192-m8192-d64-f32-causal", 16, 0.05},
		{"tiles", simulateTiles, mixed, "b1-h8-g8-n8192-m8192-d64-f32-causal", 16, 0.10},
		{"backward", simulateBackward, equal, "b1-h8-g8-n8192-m8192-d64-f32-causal", 64, 0.10},
		{"backward", simulateBackward, equal, "b1-h8-g8-n8192-m8192-d64-f32", 64, 0.10},
		{"backward", simulateBackward, equal, "b1-h1-g1-n8192-m8192-d64-f32-causal", 16, 0.10},
		{"backward", simulateBackward, equal, "b1-h1-g1-n8192-m8192-d64-f32", 16, 0.10},
		{"mixed forward", simulateForward, mixed, "b1-h8-g8-n8192-m8192-d64-f32-causal", 16, 0.05},
		{"mixed backward", simulateBackward, mixed, "b1-h8-g8-n8192-m8192-d64-f32-causal", 16, 0.05},
		{"mixed backward", simulateBackward, mixed, "b1-h1-g1-n8192-m8192-d64-f32-causal", 16, 0.15},
		{"mixed backward", simulateBackward, mixed, "b1-h1-g1-n8192-m8192-d64-f32", 16, 0.30},
	}
	for _, s := range simulations {
		p, err := flashkit.ParseProblem(s.problem)
		require.NoError(t, err)
		for _, isa := range []*laneRoutines{{convertRoutines: convertRoutines{lanes: 32}}, {convertRoutines: convertRoutines{lanes: 16}}} {
			worst, at := math.Inf(-1), 0
			for workers := 1; workers <= s.upTo; workers++ {
				if x := s.of(isa, p, s.speeds(workers)); x > worst {
					worst, at = x, workers
				}
			}
			t.Logf("%s of %s, %d lanes: idle at most %.1f%% (%d workers of 1 to %d), %.1f%% with %d", s.name, p, isa.lanes,
				100*worst, at, s.upTo, 100*s.of(isa, p, s.speeds(s.upTo)), s.upTo)
			assert.Less(t, worst, s.limit, "%s of %s, %d lanes, %d workers", s.name, p, isa.lanes, at)
		}
	}
}
