//go:build amd64 && !noasm && !purego

package simd

import "github.com/flashkit-go/flashkit"

// The bytes that a call takes beside its tensors: what the workers hold, and what
// they share. A plan that no variable function sees stays on the stack.

func (isa *laneISA) fwdMemory(c *flashkit.Call) float64 {
	pl := newPlan(c)
	isa.plan(pl, itemRows)
	return pl.fwdMemory(isa.fwdWork(pl))
}

// fwdMemory returns the workspace of a planned call.
func (pl *plan) fwdMemory(work phase) float64 { return memory(pl.call, work) + pl.tables(1) }

func (isa *laneISA) bwdMemory(c *flashkit.Call) float64 {
	pl := newPlan(c)
	tile, block := isa.bwdPlan(pl)
	return isa.bwdMemoryOf(pl, tile, block)
}

// bwdMemoryOf returns the workspace of a planned call, the stats, the sums of a dBias, and 8
// bytes for each block: how far it has come.
func (isa *laneISA) bwdMemoryOf(pl *plan, tile, block phase) float64 {
	shared := float64(pl.biasSums()) + float64(tile.items)*float64(isa.statsSize(pl))
	return memory(pl.call, tile, block) + 4*shared + 8*float64(pl.progress(block.items)) + pl.tables(2)
}

func fwdAVX512BF16Memory(c *flashkit.Call) float64 {
	pl := newPlan(c)
	avx512Lanes.plan(pl, itemRows)
	return pl.fwdMemory(fwdAVX512BF16Work(pl))
}

func fwdAMXBF16Memory(c *flashkit.Call) float64 {
	pl := newPlan(c)
	pl.planTiles()
	return pl.fwdMemory(fwdAMXBF16Work(pl))
}

func fwdAMXF32Memory(c *flashkit.Call) float64 {
	pl := newPlan(c)
	pl.planTiles()
	return pl.fwdMemory(fwdAMXF32Work(pl))
}

func bwdAMXBF16Memory(c *flashkit.Call) float64 {
	pl := newPlan(c)
	tile, block := bwdAMXBF16Plan(pl)
	return avx512Lanes.bwdMemoryOf(pl, tile, block)
}

func bwdAMXF32Memory(c *flashkit.Call) float64 {
	pl := newPlan(c)
	tile, block := bwdAMXF32Plan(pl)
	return avx512Lanes.bwdMemoryOf(pl, tile, block)
}

func bwdAVX512BF16Memory(c *flashkit.Call) float64 {
	pl := newPlan(c)
	tile, block := bwdAVX512BF16Plan(pl)
	return avx512Lanes.bwdMemoryOf(pl, tile, block)
}
