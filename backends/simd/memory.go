//go:build (amd64 || arm64) && !purego

package simd

import "github.com/flashkit-go/flashkit"

// The bytes that a call takes beside its tensors: what the workers hold, and what
// they share. A plan that no variable function sees stays on the stack.

func (isa *laneISA) fwdMemory(c *flashkit.Call) float64 {
	pl := newPlan(c)
	isa.planForward(pl)
	return pl.fwdMemory(isa.fwdWork(pl))
}

// fwdMemory returns the workspace of a planned call.
func (pl *plan) fwdMemory(work phase) float64 { return memory(pl.call, work) + pl.tableBytes(1) }

func (isa *laneISA) bwdMemory(c *flashkit.Call) float64 {
	pl := newPlan(c)
	tile, block := isa.bwdPlan(pl)
	return isa.bwdMemoryOf(pl, tile, block)
}

// bwdMemoryOf returns the workspace of a planned call, the stats, the sums of a dBias, and 8
// bytes for each block: how far it has come.
func (isa *laneISA) bwdMemoryOf(pl *plan, tile, block phase) float64 {
	shared := float64(pl.biasSums()) + float64(tile.items)*float64(isa.statsSize(pl))
	return memory(pl.call, tile, block) + 4*shared + 8*float64(pl.progress(block.items)) + pl.tableBytes(2)
}
