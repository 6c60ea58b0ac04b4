package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// accumulators returns the registers of a register tile: the given number of rows, each with the
// vectors of lanesB.
func (g *generator) accumulators(rows int) [][]VecPhysical {
	acc := make([][]VecPhysical, rows)
	for r := range acc {
		acc[r] = g.registers[r*len(g.lanesB) : (r+1)*len(g.lanesB)]
	}
	return acc
}

func clearSums(acc [][]VecPhysical) {
	for _, row := range acc {
		for _, z := range row {
			VXORPS(z, z, z)
		}
	}
}

// step multiplies the vector row at b by element(r) for each row r of the tile, and adds the
// products to the sums in acc[r].
func (g *generator) step(acc [][]VecPhysical, b Mem, element func(r int) Mem) {
	for v, z := range g.lanesB {
		VMOVUPS(g.part(b, v), z)
	}
	g.multiply(acc, element)
}

// multiply multiplies the vector row in lanesB by element(r) for each row r of the tile, and adds
// the products to the sums in acc[r].
func (g *generator) multiply(acc [][]VecPhysical, element func(r int) Mem) {
	for r := range acc {
		x := g.broadcasts[r%len(g.broadcasts)]
		VBROADCASTSS(element(r), x)
		for v, z := range g.lanesB {
			g.multiplyAdd(x, z, acc[r][v])
		}
	}
}

// multiplyAdd adds x·y to sum in each lane. If g.bf16 is set, x and y hold bf16 pairs, and · is
// their dot product.
func (g *generator) multiplyAdd(x, y, sum VecPhysical) {
	if g.bf16 {
		VDPBF16PS(x, y, sum)
	} else {
		VFMADD231PS(x, y, sum)
	}
}

// groupsOf returns the numbers of rows that a register tile may have. sums is the number of sums
// that the tile keeps for each element of a row.
func (g *generator) groupsOf(sums int) []int {
	var sizes []int
	for _, rows := range g.groups {
		if rows >= sums {
			sizes = append(sizes, rows/sums)
		}
	}
	return sizes
}

// inGroups emits loops over count rows: groups of sizes[0] rows each, then smaller groups for the
// rows left over. body emits the code of one group and must not change count.
//
// With the sizes 6, 4, 2 and 1, the last 8 rows become groups of 4 + 4, not 6 + 2. With the sizes
// 3, 2 and 1, the last 4 rows become groups of 2 + 2, not 3 + 1. The smallest groups have too few
// sums to hide the latency of the multiply-add.
func inGroups(name string, count GPVirtual, sizes []int, body func(rows int, label string)) {
	for i, rows := range sizes {
		label := fmt.Sprintf("%s%d", name, rows)
		Label(label)
		CMPQ(count, Imm(uint64(rows)))
		JL(LabelRef(label + "done"))
		if i == 0 && rows < 2*sizes[1] {
			CMPQ(count, Imm(uint64(2*sizes[1])))
			JE(LabelRef(label + "done"))
		}
		body(rows, label)
		SUBQ(U32(uint32(rows)), count)
		JMP(LabelRef(label))
		Label(label + "done")
	}
}

// unroll is the number of steps per iteration of an unrolled loop. Unrolling saves address
// arithmetic and branches, which compete with multiply-adds for ports on Intel processors.
const unroll = 4

// unrolled emits a loop of n steps. Each iteration calls step(i) for i in [0, unroll), and then
// advance. A second loop does the remaining steps one by one. The loops destroy n.
func unrolled(label string, n GPVirtual, step func(i int), advance func(steps int)) {
	SUBQ(U32(unroll), n)
	JL(LabelRef(label + "rest"))
	Label(label)
	for i := range unroll {
		step(i)
	}
	advance(unroll)
	SUBQ(U32(unroll), n)
	JGE(LabelRef(label))
	Label(label + "rest")
	ADDQ(U32(unroll), n)
	JZ(LabelRef(label + "end"))
	stepwise(label, n, step, advance)
	Label(label + "end")
}

// stepwise emits a loop of n > 0 steps, one per iteration. The loop destroys n.
func stepwise(label string, n GPVirtual, step func(i int), advance func(steps int)) {
	Label(label + "one")
	step(0)
	advance(1)
	DECQ(n)
	JNZ(LabelRef(label + "one"))
}

// rowAt returns the address of row r of a matrix at base. r is 0 to 4. step1 is the row stride in
// bytes, step3 three times the stride.
func rowAt(base, step1, step3 GPVirtual, r int) Mem {
	switch r {
	case 0:
		return Mem{Base: base}
	case 1:
		return Mem{Base: base, Index: step1, Scale: 1}
	case 2:
		return Mem{Base: base, Index: step1, Scale: 2}
	case 3:
		return Mem{Base: base, Index: step3, Scale: 1}
	case 4:
		return Mem{Base: base, Index: step1, Scale: 4}
	}
	panic(fmt.Sprintf("no address of row %d", r))
}
