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
			fmt.Sprintf("repeats %d independent multiply-adds, each of %d bf16 pairs, n times: %d FLOP in each", rows*vectors, g.vectorBytes/4, rows*g.lanes*4),
			"repetition. It measures the peak rate.")
	} else {
		g.routine("fmaPeak", "func(n int)",
			fmt.Sprintf("repeats %d independent multiply-adds, each of %d float32, n times: %d FLOP in each repetition.", rows*vectors, g.vectorBytes/4, rows*g.lanes*2),
			"It measures the peak rate.")
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
