package main

import (
	"math"
	"math/bits"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (g *generator) scoresOfTiles() {
	g.routine("scores", "func(s *float32, k *uint16, step int, q *uint32, words, keys int, rowMax *float32)",
		"sets s[j][i] to the dot product of row j of k and column i of q. It then raises",
		"rowMax[i] to the largest s[j][i] with j < keys, ignoring NaN. Rows of k are step bf16 apart.",
		"words is the number of bf16 pairs in a row, a multiple of 16. q is [words][LANES] pairs, s is",
		"[keys][LANES]. k and s must have room for a multiple of 32 rows. keys > 0.")
	g.tileScores(func(GPVirtual) { tileProducts("words", "words", 2) }, nothing)
}

// seenScoresOfTiles emits the routine that computes S = K Qᵀ for masks in which a key is visible to
// all query rows or to none.
func (g *generator) seenScoresOfTiles() {
	g.routine("seenScores", "func(s *float32, k *uint16, step int, q *uint32, words, keys int, rowMax *float32, seen *uint32)",
		"is scoresAMXBF16 with a mask that hides some keys from all queries. If bit",
		"j%32 of seen[j/32] is clear, the mask hides key j: row j of s becomes -Inf before the routine",
		"raises rowMax. seen has one word for each 32 rows of s.")
	lowest, seen := g.registers[1], param("seen")
	g.constant(float32(math.Inf(-1)), lowest)
	g.tileScores(func(GPVirtual) { tileProducts("words", "words", 2) }, func() { g.hideRows(seen, lowest) })
}

// hideRows emits the code that hides keys of one panel: 32 rows of S, one row per key. It stores
// -Inf in the rows whose bits are clear in the word at seen. It then advances seen to the next
// panel's word.
func (g *generator) hideRows(seen GPVirtual, lowest VecPhysical) {
	hidden, row, next := GP64(), GP64(), GP64()
	MOVL(Mem{Base: seen}, hidden.As32())
	ADDQ(Imm(4), seen)
	NOTL(hidden.As32())
	TESTQ(hidden, hidden)
	JZ(LabelRef("seen"))
	Label("hide")
	BSFQ(hidden, row)
	LEAQ(Mem{Base: hidden, Disp: -1}, next)
	ANDQ(next, hidden)
	SHLQ(Imm(uint64(bits.TrailingZeros(uint(g.rowBytes)))), row)
	for v := range vectors {
		VMOVUPS(lowest, g.part(Mem{Base: tileC[0], Index: row, Scale: 1}, v))
	}
	TESTQ(hidden, hidden)
	JNZ(LabelRef("hide"))
	Label("seen")
}

// tileScores emits the body of the routine scores and its variants. products emits the tile
// products. The argument of products is the address of A. A panel is 32 rows of scores. stored
// emits code that changes a panel after its store, when tileC[0] holds the address of the panel.
// The row maxima include these changes.
func (g *generator) tileScores(products func(a GPVirtual), stored func()) {
	s, keys, rowMax := param("s"), param("keys"), param("rowMax")
	g.takeTiles()
	max, more, x := g.registers[4:6], g.registers[6:8], g.registers[0]
	for v, z := range max { // max is for the even rows, and more is for the odd rows
		VMOVUPS(g.part(Mem{Base: rowMax}, v), z)
		VMOVAPS(z, more[v])
	}
	Load(Param("k"), tileA[0])
	Load(Param("step"), stepA)
	SHLQ(Imm(1), stepA)
	Label("keys")
	MOVQ(s, tileC[0])
	down(tileC[0], stepC, tileC[1])
	setTiles("q", products)
	storeTiles(2)
	stored()

	row := func(r int, max []VecPhysical) {
		for v, z := range max {
			VMOVUPS(g.part(Mem{Base: s, Disp: r * g.rowBytes}, v), x)
			VMAXPS(z, x, z) // a NaN score leaves the maximum as it is
		}
	}
	rows := GP64()
	MOVQ(keys, rows)
	CMPQ(rows, Imm(2*tileRows))
	JLE(LabelRef("some"))
	MOVQ(U32(2*tileRows), rows)
	Label("some")
	SHRQ(Imm(1), rows)
	JZ(LabelRef("last"))
	Label("rows")
	row(0, max)
	row(1, more)
	ADDQ(U32(uint32(2*g.rowBytes)), s)
	DECQ(rows)
	JNZ(LabelRef("rows"))
	SUBQ(Imm(2*tileRows), keys)
	JG(LabelRef("keys"))
	TESTQ(U32(1), keys)
	JZ(LabelRef("end"))
	Label("last")
	row(0, max)
	Label("end")
	for v, z := range max {
		VMAXPS(more[v], z, z)
		VMOVUPS(z, g.part(Mem{Base: rowMax}, v))
	}
	TILERELEASE()
	g.done()
}

func (g *generator) valuesOfTiles() {
	g.arithmetic("addValues", "func(o *float32, v *uint32, step int, p *uint32, pairs, vdim int, alpha, sum *float32)",
		"sets o[c][i] = alpha[i]·o[c][i] + Σ over j < pairs of dot(v[c][j], p[j][i]),",
		"where v and p hold bf16 pairs. Rows of v are step pairs apart. o is [vdim][LANES], p is",
		"[pairs][LANES]. pairs is a positive multiple of 16, and vdim is a positive multiple of 32. sum is",
		"scratch, [32][LANES].",
		nilAlpha)
	g.tileValues(func(GPVirtual) { tileProducts("pairs", "pairs", 2) })
}

// tileValues emits the body of the routine addValues and its variants. products emits the tile
// products. The argument of products is the address of A.
func (g *generator) tileValues(products func(a GPVirtual)) {
	o, vdim, alpha := param("o"), param("vdim"), param("alpha")
	g.takeTiles()
	by, sums := g.registers[4:6], g.registers[0:2]
	Load(Param("sum"), tileC[0])
	down(tileC[0], stepC, tileC[1])
	TESTQ(alpha, alpha)
	JZ(LabelRef("begin"))
	for v, z := range by {
		VMOVUPS(g.part(Mem{Base: alpha}, v), z)
	}
	Label("begin")
	Load(Param("v"), tileA[0])
	Load(Param("step"), stepA)
	SHLQ(Imm(2), stepA)
	Label("dims")
	setTiles("p", products)
	storeTiles(2)
	from, rows := GP64(), GP64()
	MOVQ(tileC[0], from)
	MOVQ(U32(2*tileRows), rows)
	Label("row")
	for v := range by {
		VMOVUPS(g.part(Mem{Base: from}, v), sums[v])
	}
	TESTQ(alpha, alpha)
	JZ(LabelRef("set"))
	for v, z := range by {
		VFMADD231PS(g.part(Mem{Base: o}, v), z, sums[v])
	}
	Label("set")
	for v := range by {
		VMOVUPS(sums[v], g.part(Mem{Base: o}, v))
	}
	ADDQ(U32(uint32(g.rowBytes)), o)
	ADDQ(U32(uint32(g.rowBytes)), from)
	DECQ(rows)
	JNZ(LabelRef("row"))
	SUBQ(Imm(2*tileRows), vdim)
	JG(LabelRef("dims"))
	TILERELEASE()
	g.done()
}

func (g *generator) weightPairs() {
	g.arithmetic("expScores", "func(p *uint32, s *float32, pairs int, m, rowMax, l, alpha *float32, scale float32)",
		"updates the online softmax with the scores s of a tile, and writes weights in",
		"bf16. m[i] is the old maximum of the scores of query i, rowMax[i] is the new maximum, and l[i] is",
		"the sum of the weights. The steps, for j < 2·pairs and i < LANES:",
		"",
		"  - alpha[i] = 2^(scale·(m[i] - rowMax[i]))",
		"  - w[j][i] = 2^(scale·(s[j][i] - rowMax[i])), the weights",
		"  - p[j/2][i] = the pair of w[j][i] and w[j+1][i], rounded to bf16, for even j",
		"  - l[i] = alpha[i]·l[i] + Σ over j of w[j][i], without rounding to bf16",
		"  - m[i] = rowMax[i]",
		"",
		"In the exponents, a rowMax[i] of -Inf counts as the lowest finite number. s is [2*pairs][LANES],",
		"p is [pairs][LANES]. pairs > 0.")
	permutation := g.registers[9]
	g.loadPairOrder(permutation)
	g.weighPairs(param("p"), func(dst GPVirtual, v int, x, y VecPhysical) {
		VCVTNE2PS2BF16(x, y, x)
		VPERMW(x, permutation, x)
		VMOVDQU32(x, g.part(Mem{Base: dst}, v))
	})
}

// weighPairs emits the body of the routine expScores and its variants. store emits the store of
// vector v of two rows of P. x and y hold the two vectors, and store may change x and y. dst is the
// address of the row of pairs.
func (g *generator) weighPairs(dst GPVirtual, store func(dst GPVirtual, v int, x, y VecPhysical)) {
	s, pairs := param("s"), param("pairs")
	g.exp2Constants()
	row, n, p, shift, scale := g.registers[0:2], g.registers[2], g.registers[3], g.registers[4:6], g.registers[8]
	sums := [2][]VecPhysical{g.registers[6:8], g.registers[13:15]} // sums of the even keys and of the odd keys
	floatParam("scale", scale)
	l := param("l")
	g.beginWeights(param("m"), param("rowMax"), l, param("alpha"), row[0], n, p, scale, shift)
	for _, sum := range sums {
		for _, z := range sum {
			VXORPS(z, z, z)
		}
	}
	Label("pair")
	for v := range vectors {
		for i, x := range row {
			VMOVUPS(g.part(Mem{Base: s, Disp: i * g.rowBytes}, v), x)
			VSUBPS(shift[v], x, x)
			VMULPS(scale, x, x)
			g.exp2(x, n, p)
			VADDPS(x, sums[i][v], sums[i][v])
		}
		store(dst, v, row[0], row[1])
	}
	ADDQ(U32(uint32(2*g.rowBytes)), s)
	ADDQ(U32(uint32(g.rowBytes)), dst)
	DECQ(pairs)
	JNZ(LabelRef("pair"))
	for v := range vectors {
		VADDPS(sums[1][v], sums[0][v], sums[0][v])
		VADDPS(g.part(Mem{Base: l}, v), sums[0][v], sums[0][v])
		VMOVUPS(sums[0][v], g.part(Mem{Base: l}, v))
	}
	g.done()
}

func (g *generator) finite() {
	g.routine("finite", "func(src *uint16, step, n, rows int) bool",
		"reports whether all elements of the bf16 matrix src are finite. src is [rows][n].",
		"Rows of src are step elements apart. n > 0, rows > 0.")
	src, step, n, rows := param("src"), bytes16(param("step")), param("n"), param("rows")
	exponent, x := g.registers[0], g.registers[1]
	g.word(0x7f807f80, exponent)
	tail, ones, yes := GP32(), GP32(), GP32()
	MOVQ(n, RCX)
	ANDL(Imm(31), ECX)
	MOVL(U32(0xffffffff), ones)
	MOVL(ones, tail)
	SHLL(CL, tail)
	NOTL(tail)
	KMOVD(tail, K1) // the low n%32 bits
	XORL(yes, yes)
	Label("row")
	at, left := GP64(), GP64()
	MOVQ(src, at)
	MOVQ(n, left)
	KMOVD(ones, K2)
	Label("columns")
	SUBQ(Imm(32), left)
	JGE(LabelRef("some"))
	KMOVD(K1, K2)
	Label("some")
	VMOVDQU16_Z(Mem{Base: at}, K2, x)
	VPANDD(exponent, x, x)
	VPCMPEQW(exponent, x, K3)
	KORTESTD(K3, K3)
	JNZ(LabelRef("no"))
	ADDQ(Imm(64), at)
	TESTQ(left, left)
	JG(LabelRef("columns"))
	ADDQ(step, src)
	DECQ(rows)
	JNZ(LabelRef("row"))
	MOVL(U32(1), yes)
	Label("no")
	Store(yes.As8(), ReturnIndex(0))
	g.done()
}

// tilePeak emits the routine that measures the peak rate of tile products.
func (g *generator) tilePeak() {
	g.routine("tilePeak", "func(n int, a *uint16)",
		"measures the peak rate of tile products. It runs n iterations. One iteration is",
		"65536 FLOP: four tile products. The operands are tiles of the matrix a, which is [32][32] bf16.")
	n := param("n")
	g.takeTiles()
	Load(Param("a"), tileB)
	MOVQ(U32(tileBytes), stepB)
	for t := range 8 {
		if t < 4 {
			TILEZERO(t)
		} else {
			TILELOADD(t%2*tileRows*tileBytes, tileB, stepB, t)
		}
	}
	Label("loop")
	for tile := range 4 {
		multiplyTiles(tile/2, tile%2)
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	TILERELEASE()
	g.done()
}
