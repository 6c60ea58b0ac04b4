package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const (
	vectorPanels = 4 // panels of B that multiplyVector reads at a time
	vectorWidth  = 3 // vectors of a row of these panels
)

// multiplyVector emits the product of one row of A and neighboring panels of B. The sums of one
// panel are too few to hide the latency of a multiply-add. The hardware prefetches several panels
// faster than one, without help by instructions.
func (g *generator) multiplyVector() {
	width := vectorPanels * vectorWidth * g.vectorBytes / 4
	g.arithmetic("multiplyVector", "func(sums, a, b *float32, bStep, k, add int, c, bias *float32)",
		fmt.Sprintf("computes y[x] = Σ over i < k of a[i]·B[i][x] for x < %d. The columns of B are in", width),
		fmt.Sprintf("%d panels of %d columns. Panels begin bStep elements apart, and their rows are contiguous.", vectorPanels, width/vectorPanels),
		"",
		"If c is nil, the routine stores y in sums. If c is not nil, it stores y in c and leaves sums",
		"unchanged. Before the store, the routine adds these terms to y[x]:",
		"",
		"  - the old sums[x] if add&1 != 0",
		"  - bias[x] if c and bias are not nil",
		"  - the old c[x] if c is not nil and add&2 != 0",
		"", "k > 0.")
	sums, a, step, k := param("sums"), param("a"), bytes(param("bStep")), param("k")
	panels := []GPVirtual{param("b")}
	for len(panels) < vectorPanels {
		next := GP64()
		LEAQ(Mem{Base: panels[len(panels)-1], Index: step, Scale: 1}, next)
		panels = append(panels, next)
	}
	acc, x := g.registers[:vectorPanels*vectorWidth], g.registers[vectorPanels*vectorWidth:][:unroll]
	clearSums([][]VecPhysical{acc})
	row := vectorWidth * g.vectorBytes
	unrolled("step", k, func(i int) {
		VBROADCASTSS(Mem{Base: a, Disp: 4 * i}, x[i])
		for v, z := range acc {
			VFMADD231PS(g.part(Mem{Base: panels[v/vectorWidth], Disp: i * row}, v%vectorWidth), x[i], z)
		}
	}, func(steps int) {
		ADDQ(U32(uint32(4*steps)), a)
		for _, b := range panels {
			ADDQ(U32(uint32(steps*row)), b)
		}
	})
	each := func(f func(v int, z VecPhysical)) {
		for v, z := range acc {
			f(v, z)
		}
	}
	add, c, bias := param("add"), param("c"), param("bias")
	TESTQ(U32(1), add)
	JZ(LabelRef("set"))
	each(func(v int, z VecPhysical) { VADDPS(g.part(Mem{Base: sums}, v), z, z) })
	Label("set")
	TESTQ(c, c)
	JZ(LabelRef("store"))
	MOVQ(c, sums)
	TESTQ(bias, bias)
	JZ(LabelRef("plain"))
	each(func(v int, z VecPhysical) { VADDPS(g.part(Mem{Base: bias}, v), z, z) })
	Label("plain")
	TESTQ(U32(2), add)
	JZ(LabelRef("store"))
	each(func(v int, z VecPhysical) { VADDPS(g.part(Mem{Base: c}, v), z, z) })
	Label("store")
	each(func(v int, z VecPhysical) { VMOVUPS(z, g.part(Mem{Base: sums}, v)) })
	g.done()
}
