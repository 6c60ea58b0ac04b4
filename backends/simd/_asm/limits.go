package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// limits emits the routine that measures the peak rate of multiply-adds. Enough independent sums
// stay in registers to hide the latency of a multiply-add.
func (g *generator) limits() {
	rows := g.groups[0]
	if g.bf16 {
		g.routine("dotPeak", "func(n int)",
			"measures the peak rate of multiply-adds. It runs n iterations. One iteration is",
			fmt.Sprintf("%d FLOP: %d independent multiply-adds of %d bf16 pairs each.", rows*g.lanes*4, rows*vectors, g.vectorBytes/4))
	} else {
		g.routine("fmaPeak", "func(n int)",
			"measures the peak rate of multiply-adds. It runs n iterations. One iteration is",
			fmt.Sprintf("%d FLOP: %d independent multiply-adds of %d float32 each.", rows*g.lanes*2, rows*vectors, g.vectorBytes/4))
	}
	n, x := param("n"), g.lanesB[0]
	acc := g.accumulators(rows)
	clearSums(acc)
	VXORPS(x, x, x)
	Label("loop")
	for _, row := range acc {
		for _, z := range row {
			g.multiplyAdd(x, x, z)
		}
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	g.done()
}
