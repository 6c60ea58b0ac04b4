//go:build !purego

package simd

import "github.com/flashkit-go/flashkit"

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

func decodeAMXBF16Memory(c *flashkit.Call) float64 { return decodeMemory(c, 1, decodeAMXBF16Floats(c)) }
