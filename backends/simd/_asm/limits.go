package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// limits emits the loop that measures the machine's multiply-add peak: as many
// independent sums as hide the latency, nothing but registers.
func limits() {
	routine("fmaPeakAVX512", "func(n int)")
	Doc("fmaPeakAVX512 does n times 16 independent multiply-adds of 16 float32: 512 FLOP each time.")
	n := param("n")
	acc := accumulators(groupRows)
	for _, row := range acc {
		for _, z := range row {
			VPXORQ(z, z, z)
		}
	}
	VPXORQ(Z16, Z16, Z16)
	Label("loop")
	for _, row := range acc {
		for _, z := range row {
			VFMADD231PS(Z16, Z16, z)
		}
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}
