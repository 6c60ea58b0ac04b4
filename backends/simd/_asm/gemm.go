package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// accumulators returns the register tile: rows x vectors.
func (g *generator) accumulators(rows int) [][]VecPhysical {
	acc := make([][]VecPhysical, rows)
	for r := range acc {
		acc[r] = g.registers[r*vectors : (r+1)*vectors]
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

// step multiplies one row of lanes, at b, with one element for each row of the
// tile, and adds the products.
func (g *generator) step(acc [][]VecPhysical, b Mem, element func(r int) Mem) {
	for v, z := range g.lanesB {
		VMOVUPS(g.part(b, v), z)
	}
	g.multiply(acc, element)
}

// multiply adds the products of the row in lanesB and an element for each row of
// the tile.
func (g *generator) multiply(acc [][]VecPhysical, element func(r int) Mem) {
	for r := range acc {
		x := g.broadcasts[r%len(g.broadcasts)]
		VBROADCASTSS(element(r), x)
		for v, z := range g.lanesB {
			g.multiplyAdd(x, z, acc[r][v])
		}
	}
}

// multiplyAdd adds x*y to sum, in the type of the routines.
func (g *generator) multiplyAdd(x, y, sum VecPhysical) {
	if g.bf16 {
		VDPBF16PS(x, y, sum)
	} else {
		VFMADD231PS(x, y, sum)
	}
}

// inGroups emits code for as many groups of the largest size as count holds and
// then for the remainders. body handles a group and leaves count alone.
//
// Of groups of 6, 4, 2 and 1 rows, 8 rows are two of 4: groups of 2 have too few
// sums to hide the latency of the multiply-add.
func (g *generator) inGroups(name string, count GPVirtual, body func(rows int, label string)) {
	for i, rows := range g.groups {
		label := fmt.Sprintf("%s%d", name, rows)
		Label(label)
		CMPQ(count, Imm(uint64(rows)))
		JL(LabelRef(label + "done"))
		if i == 0 && rows < 2*g.groups[1] {
			CMPQ(count, Imm(uint64(2*g.groups[1])))
			JE(LabelRef(label + "done"))
		}
		body(rows, label)
		SUBQ(U32(uint32(rows)), count)
		JMP(LabelRef(label))
		Label(label + "done")
	}
}

// unroll is how many steps a loop takes at a time. Address arithmetic and the
// branch compete with multiply-adds for ports on Intel processors.
const unroll = 4

// unrolled emits a loop of n steps: step(i) for i in [0, unroll) and advance
// over that many, then the rest one by one. It destroys n.
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
	Label(label + "one")
	step(0)
	advance(1)
	DECQ(n)
	JNZ(LabelRef(label + "one"))
	Label(label + "end")
}

// declareScores begins scores. It returns how to count steps of K.
func (g *generator) declareScores(parts bool) (toBytes func(Register) GPVirtual) {
	switch {
	case g.bf16:
		g.arithmetic("scores", "func(s *float32, k *uint16, step int, q *uint32, dim, keys int, top *float32)",
			"sets s[j][i] = dot(k[j], q[i]) for keys rows of K, step elements apart,",
			"and raises top[i] to the largest of them. q is [dim/2][LANES] of pairs, with 0 in the last half pair",
			"of an odd dim. s is [keys][LANES]. dim > 0.")
		return bytes16
	case parts:
		g.arithmetic("scoresInParts", "func(s, k *float32, step int, q *float32, dim, keys int, top, ahead *float32)",
			"is scores with dot products that are the sums of those of two halves.")
	default:
		g.arithmetic("scores", "func(s, k *float32, step int, q *float32, dim, keys int, top, ahead *float32)",
			"sets s[j][i] = dot(k[j], q[i]) for keys rows of K, step elements apart,",
			"and raises top[i] to the largest of them. q is [dim][LANES], s is [keys][LANES]. dim > 0. Meanwhile",
			"it brings memory from ahead on into the second-level cache, 2*dim bytes for each key, or some more.")
	}
	return bytes
}

// firstPart emits how the columns of a dot product are cut in parts: n of them, then left
// more. Either sum is rounded in smaller units than one of all. Of few columns n is 0.
func firstPart(dim, n, left GPVirtual) {
	MOVQ(dim, n)
	SHRQ(Imm(1), n)
	ANDQ(I32(-unroll), n)
	MOVQ(dim, left)
	SUBQ(n, left)
}

// scores emits S = K Qᵀ with the running maximum in the store. Where S is dP, the parts
// matter: delta is subtracted from it, which is about as large.
func (g *generator) scores(parts bool) {
	toBytes := g.declareScores(parts)
	s, k, step0 := param("s"), param("k"), toBytes(param("step"))
	q, keys, top := param("q"), param("keys"), param("top")
	var ahead GPVirtual
	if !g.bf16 {
		ahead = param("ahead")
	}
	step3 := GP64()
	LEAQ(Mem{Base: step0, Index: step0, Scale: 2}, step3)
	g.inGroups("keys", keys, func(rows int, label string) {
		acc := g.accumulators(rows)
		clearSums(acc)
		a0, a4, b, n, left := GP64(), GP64(), GP64(), GP64(), GP64()
		MOVQ(k, a0)
		LEAQ(Mem{Base: k, Index: step0, Scale: 4}, a4)
		MOVQ(q, b)
		dim := param("dim")
		MOVQ(dim, n)
		if g.bf16 {
			SHRQ(Imm(1), n)
		}
		if parts {
			firstPart(dim, n, left)
			Label(label + "part")
		}
		element := func(r int) Mem { return rowAt([]GPVirtual{a0, a4}[r/4], step0, step3, r%4) }
		unrolled(label+"dim", n, func(i int) {
			if i == 0 && !g.bf16 && rows == g.groups[0] {
				PREFETCHT1(Mem{Base: ahead})
				ADDQ(Imm(64), ahead)
			}
			g.step(acc, Mem{Base: b, Disp: i * g.rowBytes}, func(r int) Mem { return element(r).Offset(i * 4) })
		}, func(steps int) {
			ADDQ(U32(uint32(steps*4)), a0)
			ADDQ(U32(uint32(steps*4)), a4)
			ADDQ(U32(uint32(steps*g.rowBytes)), b)
		})
		if g.bf16 {
			g.halfStep(label, dim, acc, Mem{Base: b}, element)
		}
		if parts {
			g.addParts(label, n, left, s, acc)
		}
		g.storeScores(s, top, acc)
		ADDQ(U32(uint32(rows*g.rowBytes)), s)
		for range rows {
			ADDQ(step0, k)
		}
	})
	g.done()
}

func (g *generator) storeScores(s, top GPVirtual, acc [][]VecPhysical) {
	max := g.lanesB
	for v, z := range max {
		VMOVUPS(g.part(Mem{Base: top}, v), z)
	}
	for r := range acc {
		for v, z := range acc[r] {
			VMOVUPS(z, g.part(Mem{Base: s, Disp: r * g.rowBytes}, v))
			VMAXPS(max[v], z, max[v]) // a NaN score leaves the maximum as it is
		}
	}
	for v, z := range max {
		VMOVUPS(z, g.part(Mem{Base: top}, v))
	}
}

// addParts emits what follows a part of the columns: the first one's sums are stored, and
// added to the second one's.
func (g *generator) addParts(label string, n, left, s GPVirtual, acc [][]VecPhysical) {
	each := func(f func(z VecPhysical, m Mem)) {
		for r := range acc {
			for v, z := range acc[r] {
				f(z, g.part(Mem{Base: s, Disp: r * g.rowBytes}, v))
			}
		}
	}
	TESTQ(left, left)
	JZ(LabelRef(label + "add"))
	MOVQ(left, n)
	XORQ(left, left)
	each(func(z VecPhysical, m Mem) { VMOVUPS(z, m) })
	clearSums(acc)
	JMP(LabelRef(label + "part"))
	Label(label + "add")
	each(func(z VecPhysical, m Mem) { VADDPS(m, z, z) })
}

// rowAt returns the address of row r of 0 to 3.
func rowAt(base, step1, step3 GPVirtual, r int) Mem {
	switch r {
	case 1:
		return Mem{Base: base, Index: step1, Scale: 1}
	case 2:
		return Mem{Base: base, Index: step1, Scale: 2}
	case 3:
		return Mem{Base: base, Index: step3, Scale: 1}
	}
	return Mem{Base: base}
}
