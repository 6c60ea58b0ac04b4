//go:build amd64 && !noasm && !purego

package simd

import "github.com/flashkit-go/flashkit"

// The bytes that a call takes beside its tensors: what the workers hold, and what
// they share.

func (isa *laneISA) fwdMemory(p flashkit.Problem) float64 {
	return fwdMemoryWith(p, func(pl *plan) { isa.plan(pl, itemRows) }, isa.fwdWork)
}

// fwdMemoryWith returns the workspace of a plan that cut makes.
func fwdMemoryWith(p flashkit.Problem, cut func(*plan), work func(*plan) phase) float64 {
	pl := newPlan(p)
	cut(pl)
	return memory(work(pl))
}

func (isa *laneISA) bwdMemory(p flashkit.Problem) float64 { return isa.bwdMemoryWith(p, isa.bwdPlan) }

// bwdMemoryWith returns the workspace, the stats, and 8 bytes for each block:
// how far it has come.
func (isa *laneISA) bwdMemoryWith(p flashkit.Problem, cut func(*plan) (tile, block phase)) float64 {
	pl := newPlan(p)
	tile, block := cut(pl)
	return memory(tile, block) + 4*float64(tile.items)*float64(isa.statsSize(pl)) + 8*float64(block.items)
}

func decodeMemory(p flashkit.Problem) float64 { return decodeMemoryWith(&p, decodeWork(&p)) }

func decodeAMXBF16Memory(p flashkit.Problem) float64 {
	return decodeMemoryWith(&p, decodeAMXBF16Work(&p))
}

func decodeMemoryWith(p *flashkit.Problem, work [2]phase) float64 {
	d := planDecode(p)
	return memory(work[:]...) + 4*float64(work[0].items)*float64(d.part)
}

func fwdAVX512BF16Memory(p flashkit.Problem) float64 {
	return fwdMemoryWith(p, func(pl *plan) { avx512Lanes.plan(pl, itemRows) }, fwdAVX512BF16Work)
}

func fwdAMXBF16Memory(p flashkit.Problem) float64 {
	return fwdMemoryWith(p, (*plan).planTiles, fwdAMXBF16Work)
}

func fwdAMXF32Memory(p flashkit.Problem) float64 {
	return fwdMemoryWith(p, (*plan).planTiles, fwdAMXF32Work)
}

func bwdAMXBF16Memory(p flashkit.Problem) float64 {
	return avx512Lanes.bwdMemoryWith(p, bwdAMXBF16Plan)
}

func bwdAMXF32Memory(p flashkit.Problem) float64 {
	return avx512Lanes.bwdMemoryWith(p, bwdAMXF32Plan)
}

func bwdAVX512BF16Memory(p flashkit.Problem) float64 {
	return avx512Lanes.bwdMemoryWith(p, bwdAVX512BF16Plan)
}
