package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// AVX512-BF16 multiplies pairs of bf16: two neighbors in a row, or two elements of a column in
// neighboring rows. A pair is a 32-bit word with its first element in the low half. Broadcasts,
// loads and loops are therefore the same as for float32.

// bf16Routines emits the routines that multiply bf16 pairs. For the other steps, the kernels call
// routines for AVX512.
func (g *generator) bf16Routines() {
	g.pairScores()
	g.pairValues()
	g.dots()
	g.gradients()
	for _, transposed := range []bool{false, true} {
		g.product(transposed, false)
		g.product(transposed, true)
	}
	g.transposePairs()
	g.pairRows()
	g.narrowPairs()
	g.narrowRows()
	g.limits()
}

func bytes16(elements Register) GPVirtual {
	r := elements.(GPVirtual)
	SHLQ(Imm(1), r)
	return r
}

// pairScores emits the routine that computes S = K Qᵀ and updates the running maxima as it stores
// S.
func (g *generator) pairScores() {
	g.arithmetic("scores", "func(s *float32, k *uint16, step int, q *uint32, dim, keys int, rowMax *float32)",
		"sets s[j][i] to the dot product of row j of k and query i of q. It then raises",
		"rowMax[i] to the largest s[j][i], ignoring NaN. k is [keys][dim] bf16, with rows step elements",
		"apart. q is [(dim+1)/2][LANES] bf16 pairs: the pair q[c][i] holds elements 2c and 2c+1 of query",
		"i. If dim is odd, the second element of each pair in the last row of q is 0. s is [keys][LANES].",
		"dim > 0.")
	s, k, step0 := param("s"), param("k"), bytes16(param("step"))
	q, keys, rowMax := param("q"), param("keys"), param("rowMax")
	step3 := GP64()
	LEAQ(Mem{Base: step0, Index: step0, Scale: 2}, step3)
	inGroups("keys", keys, g.groups, func(rows int, label string) {
		acc := g.accumulators(rows)
		clearSums(acc)
		a0, a4, b, n := GP64(), GP64(), GP64(), GP64()
		MOVQ(k, a0)
		LEAQ(Mem{Base: k, Index: step0, Scale: 4}, a4)
		MOVQ(q, b)
		dim := param("dim")
		MOVQ(dim, n)
		SHRQ(Imm(1), n)
		element := func(r int) Mem { return rowAt([]GPVirtual{a0, a4}[r/4], step0, step3, r%4) }
		unrolled(label+"dim", n, func(i int) {
			g.step(acc, Mem{Base: b, Disp: i * g.rowBytes}, func(r int) Mem { return element(r).Offset(i * 4) })
		}, func(steps int) {
			ADDQ(U32(uint32(steps*4)), a0)
			ADDQ(U32(uint32(steps*4)), a4)
			ADDQ(U32(uint32(steps*g.rowBytes)), b)
		})
		g.halfStep(label, dim, acc, Mem{Base: b}, element)
		g.storeScores(s, rowMax, acc)
		ADDQ(U32(uint32(rows*g.rowBytes)), s)
		for range rows {
			ADDQ(step0, k)
		}
	})
	g.done()
}

// halfStep is step for the last column of K if dim is odd. It reads one bf16 from each row and sets
// the upper half of the pair to 0. In b, the upper halves are 0 too.
func (g *generator) halfStep(label string, dim GPVirtual, acc [][]VecPhysical, b Mem, element func(r int) Mem) {
	TESTQ(U32(1), dim)
	JZ(LabelRef(label + "even"))
	lowHalves := GP32()
	MOVL(U32(0x55555555), lowHalves)
	KMOVD(lowHalves, K1)
	for v, z := range g.lanesB {
		VMOVUPS(g.part(b, v), z)
	}
	for r := range acc {
		x := g.broadcasts[r%len(g.broadcasts)]
		VPBROADCASTW_Z(element(r), K1, x)
		for v, z := range g.lanesB {
			g.multiplyAdd(x, z, acc[r][v])
		}
	}
	Label(label + "even")
}

func (g *generator) pairValues() {
	g.arithmetic("addValues", "func(o *float32, v *uint32, step int, p *uint32, pairs, vdim int, alpha *float32)",
		"sets o[c][i] = alpha[i]·o[c][i] + Σ over j < pairs of dot(v[j][c], p[j][i]),",
		"where v and p hold bf16 pairs. Rows of v are step pairs apart. o is [vdim][LANES], p is",
		"[pairs][LANES]. pairs > 0.",
		nilAlpha)
	g.newValueSum("pairs").columns("dims", false, 1)
	g.done()
}

func (g *generator) transposePairs() {
	g.routine("transposePairs", "func(dst *uint32, dstStep int, src *uint16, srcStep int)",
		"transposes 16 rows of 16 bf16 pairs. For r, c < 16, dst[c][r] is the",
		"pair of src[r][2c] and src[r][2c+1]. Rows of dst are dstStep pairs apart. Rows of src are srcStep",
		"elements apart.")
	dst, dstStep := param("dst"), bytes(param("dstStep"))
	src, srcStep := param("src"), bytes16(param("srcStep"))
	g.transposeBlock(dst, dstStep, src, srcStep, asRead, storeColumn)
	g.done()
}

// pairRows emits the routine that packs every two rows of a matrix into one row of pairs. The
// matrix is V, or an operand whose rows the backward pass sums.
func (g *generator) pairRows() {
	g.routine("pairRows", "func(dst *uint32, src *uint16, step, n, pairs int)",
		"packs every two rows of src into one row of bf16 pairs. For j < pairs and",
		"c < n, dst[j][c] is the pair of src[2j][c] and src[2j+1][c]. Rows of src are step elements apart.",
		"dst is [pairs][n]. pairs > 0, n > 0.")
	dst, src, step, n, pairs := param("dst"), param("src"), bytes16(param("step")), param("n"), param("pairs")
	x, y := g.registers[0], g.registers[1]
	tail, ones := GP32(), GP32()
	MOVQ(n, RCX)
	ANDL(Imm(15), ECX)
	MOVL(U32(0xffff), tail)
	SHLL(CL, tail)
	NOTL(tail)
	KMOVW(tail, K1) // the low n%16 bits
	MOVL(U32(0xffff), ones)
	Label("pair")
	a, b, left := GP64(), GP64(), GP64()
	MOVQ(src, a)
	LEAQ(Mem{Base: src, Index: step, Scale: 1}, b)
	MOVQ(n, left)
	KMOVW(ones, K2)
	Label("columns")
	SUBQ(Imm(16), left)
	JGE(LabelRef("some"))
	KMOVW(K1, K2)
	Label("some")
	VMOVDQU16_Z(Mem{Base: a}, K2, x.AsY())
	VMOVDQU16_Z(Mem{Base: b}, K2, y.AsY())
	VPMOVZXWD(x.AsY(), x)
	VPMOVZXWD(y.AsY(), y)
	VPSLLD(Imm(16), y, y)
	VPORD(x, y, x)
	VMOVDQU32(x, K2, Mem{Base: dst})
	ADDQ(Imm(32), a)
	ADDQ(Imm(32), b)
	ADDQ(Imm(64), dst)
	TESTQ(left, left)
	JG(LabelRef("columns"))
	LEAQ(Mem{Base: dst, Index: left, Scale: 4}, dst) // undoes the excess of the last vector: left is not positive
	LEAQ(Mem{Base: src, Index: step, Scale: 2}, src)
	DECQ(pairs)
	JNZ(LabelRef("pair"))
	g.done()
}

// loadPairOrder loads the permutation that turns a vector's two halves into pairs: pair i is
// element i of the lower half and element i of the upper half.
func (g *generator) loadPairOrder(z VecPhysical) {
	VMOVDQU32(g.table("pairOrder", func() {
		for i := range 16 {
			DATA(4*i, U32(uint32(i|(i+16)<<16)))
		}
	}), z)
}

func (g *generator) narrowPairs() {
	g.routine("narrowPairs", "func(dst *uint32, src *float32, step, pairs int)",
		"rounds src to bf16 and packs every two rows into one row of pairs. For",
		"j < pairs and i < LANES, dst[j][i] is the pair of src[2j][i] and src[2j+1][i]. Rows of src are",
		"step elements apart. dst is [pairs][LANES]. pairs > 0.")
	dst, src, step, pairs := param("dst"), param("src"), bytes(param("step")), param("pairs")
	permutation := g.registers[4]
	g.loadPairOrder(permutation)
	Label("pair")
	for v := range vectors {
		x, y := g.registers[v], g.registers[2+v]
		VMOVUPS(g.part(Mem{Base: src}, v), x)
		VMOVUPS(g.part(Mem{Base: src, Index: step, Scale: 1}, v), y)
		VCVTNE2PS2BF16(x, y, x)
		VPERMW(x, permutation, x)
		VMOVDQU32(x, g.part(Mem{Base: dst}, v))
	}
	LEAQ(Mem{Base: src, Index: step, Scale: 2}, src)
	ADDQ(U32(uint32(g.rowBytes)), dst)
	DECQ(pairs)
	JNZ(LabelRef("pair"))
	g.done()
}

func (g *generator) narrowRows() {
	g.routine("narrowRows", "func(dst *uint16, src *float32, step, rows int)",
		"rounds src[j][i] to bf16 and stores it in dst[j][i], for j < rows and i < LANES. Rows of",
		"src and rows of dst are step elements apart. rows > 0.")
	dst, src, step4, rows := param("dst"), param("src"), bytes(param("step")), param("rows")
	step2 := GP64()
	MOVQ(step4, step2)
	SHRQ(Imm(1), step2)
	x, y := g.registers[0], g.registers[1]
	Label("row")
	VMOVUPS(g.part(Mem{Base: src}, 0), x)
	VMOVUPS(g.part(Mem{Base: src}, 1), y)
	VCVTNE2PS2BF16(x, y, x)
	VMOVDQU32(x, Mem{Base: dst})
	ADDQ(step4, src)
	ADDQ(step2, dst)
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}
