//go:build !noasm && !purego

package simd

import "github.com/flashkit-go/flashkit"

// The bytes that a call takes beside its tensors: what the workers hold, and what
// they share.

func (isa *laneISA) fwdMemory(p flashkit.Problem) float64 {
	return fwdMemoryWith(p, func(j *job) { isa.plan(j, itemRows) }, isa.fwdWork)
}

// fwdMemoryWith returns the workspace of a planned job.
func fwdMemoryWith(p flashkit.Problem, plan func(*job), work func(*job) phase) float64 {
	j := &job{p: p, workers: workers()}
	plan(j)
	return memory(work(j))
}

func (isa *laneISA) bwdMemory(p flashkit.Problem) float64 { return isa.bwdMemoryWith(p, isa.bwdPlan) }

// bwdMemoryWith returns the workspace, the stats, and 8 bytes for each block:
// how far it has come.
func (isa *laneISA) bwdMemoryWith(p flashkit.Problem, plan func(*job) (tile, block phase)) float64 {
	j := &job{p: p, workers: workers()}
	tile, block := plan(j)
	return memory(tile, block) + 4*float64(tile.items)*float64(isa.statsSize(j)) + 8*float64(block.items)
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
	return fwdMemoryWith(p, func(j *job) { avx512Lanes.plan(j, itemRows) }, fwdAVX512BF16Work)
}

func fwdAMXBF16Memory(p flashkit.Problem) float64 {
	return fwdMemoryWith(p, (*job).planTiles, fwdAMXBF16Work)
}

func fwdAMXF32Memory(p flashkit.Problem) float64 {
	return fwdMemoryWith(p, (*job).planTiles, fwdAMXF32Work)
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
