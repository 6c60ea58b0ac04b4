package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// limits emits the loop that measures the machine's multiply-add peak: as many
// independent sums as hide the latency, nothing but registers.
func limits() {
	rows := groups[0]
	if bf16 {
		routine("dotPeak", "func(n int)", fmt.Sprintf("does n times %d independent multiply-adds of %d bf16 pairs: %d FLOP each time.",
			rows*vectors, vectorBytes/4, rows*lanes*4))
	} else {
		routine("fmaPeak", "func(n int)", fmt.Sprintf("does n times %d independent multiply-adds of %d float32: %d FLOP each time.",
			rows*vectors, vectorBytes/4, rows*lanes*2))
	}
	n, x := param("n"), lanesB[0]
	acc := accumulators(rows)
	clearSums(acc)
	VXORPS(x, x, x)
	Label("loop")
	for _, row := range acc {
		for _, z := range row {
			multiplyAdd(x, x, z)
		}
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	done()
}
