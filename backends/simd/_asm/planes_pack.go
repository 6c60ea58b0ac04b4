package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// planeWeights emits the routine that computes P = 2^(scale·(S - max)) and splits P into three
// planes of bf16 pairs.
func (g *generator) planeWeights() {
	g.arithmetic("planeWeights", "func(p *uint32, plane int, s *float32, pairs int, m, rowMax, l, alpha *float32, scale float32)",
		"is expScoresAMXBF16 for float32 weights. It splits each weight into three",
		"bf16 numbers and stores one in each of the three planes of p. Planes are plane bytes apart.")
	plane, store := param("plane"), g.cutPairs(g.registers[9:11], g.registers[12])
	g.weighPairs(param("p"), func(dst GPVirtual, v int, x, y VecPhysical) { store(dst, plane, v, x, y) })
}

func (g *generator) planePairs() {
	g.arithmetic("planePairs", "func(p *uint32, plane int, s *float32, pairs int)",
		"splits each element of s into three bf16 numbers, one for each of the three",
		"planes of p. In a plane, word [j][i] is the pair of the numbers of s[2j][i] and s[2j+1][i].",
		"Planes are plane bytes apart. s is [2*pairs][LANES], and a plane of p is [pairs][LANES].",
		"pairs > 0.")
	dst, plane, s, pairs := param("p"), param("plane"), param("s"), param("pairs")
	row, store := g.registers[0:2], g.cutPairs(g.registers[2:4], g.registers[4])
	Label("pair")
	for v := range vectors {
		for i, x := range row {
			VMOVUPS(g.part(Mem{Base: s, Disp: i * g.rowBytes}, v), x)
		}
		store(dst, plane, v, row[0], row[1])
	}
	ADDQ(U32(uint32(2*g.rowBytes)), s)
	ADDQ(U32(uint32(g.rowBytes)), dst)
	DECQ(pairs)
	JNZ(LabelRef("pair"))
	g.done()
}

// cutPairs returns a function that splits x and y and stores the resulting pairs in the three
// planes at dst. x and y hold vector v of two adjacent rows. The function destroys x and y. It uses
// the registers piece and upper.
func (g *generator) cutPairs(piece []VecPhysical, upper VecPhysical) func(dst, plane GPVirtual, v int, x, y VecPhysical) {
	g.cutConstant(upper)
	return func(dst, plane GPVirtual, v int, x, y VecPhysical) {
		for i := range planes - 1 {
			g.cut(x, piece[0])
			g.cut(y, piece[1])
			g.pairUp(piece[0], piece[1], g.part(planeOf(dst, plane, i), v))
		}
		g.pairUp(x, y, g.part(planeOf(dst, plane, planes-1), v))
	}
}

// planeOf returns the address of plane i, 0 to 2.
func planeOf(base, plane GPVirtual, i int) Mem {
	if i == 0 {
		return Mem{Base: base}
	}
	return Mem{Base: base, Index: plane, Scale: uint8(i)}
}

func (g *generator) cutConstant(z VecPhysical) {
	g.upperHalf = z
	g.word(0xffff0000, g.upperHalf)
}

// split sets piece to x, rounded to bf16, and leaves the remainder in x. No NaN is lost: the
// rounding addition may turn a NaN into a number in piece, but the subtraction then leaves NaN in
// x.
func (g *generator) split(x, piece VecPhysical) {
	VPADDD(g.half, x, piece)
	VPANDD(g.upperHalf, piece, piece)
	VSUBPS(piece, x, x)
}

// cut is split with truncation in place of rounding. One operand of a product may be truncated if
// the other is rounded. After rounding, remainders are smaller and have both signs. This keeps the
// omitted products small.
func (g *generator) cut(x, piece VecPhysical) {
	VPANDD(g.upperHalf, x, piece)
	VSUBPS(piece, x, x)
}

// pairUp truncates x and y to bf16 and stores pairs of x[i] and y[i] in memory at to. It destroys
// x.
func (g *generator) pairUp(x, y VecPhysical, to Mem) {
	const orAnd = 0xf8 // x | y & upperHalf
	VPSRLD(Imm(16), x, x)
	VPTERNLOGD(Imm(orAnd), g.upperHalf, y, x)
	VMOVDQU32(x, to)
}

type splitter struct {
	*generator
	x, piece              []VecPhysical
	limit, absolute, both VecPhysical
	whole, all            Op // opmasks; whole: all columns; all: the columns in which no wild element was seen so far
	plane, srcStep        GPVirtual
}

func (g *generator) splitRows() {
	g.routine("splitRows", "func(dst *uint16, dstStep, plane int, src *float32, srcStep, n, rows int) bool",
		"splits each element of the float32 matrix src into three bf16 numbers, one for",
		"each of the three planes of dst. Planes are plane bytes apart. src is [rows][n]. Rows of src are",
		"srcStep elements apart, and rows of a plane are dstStep elements apart. An element that is NaN,",
		"or has a magnitude of 2^58 or more, becomes 0. The routine returns true if src has no such",
		"element. n > 0, rows > 0.")
	dst, dstStep, plane := param("dst"), bytes16(param("dstStep")), param("plane")
	src, srcStep, rows := param("src"), bytes(param("srcStep")), param("rows")
	r, some := g.registers, K2
	x := splitter{g, r[0:2], r[2:4], r[4], r[5], r[8], K1, K3, plane, srcStep}
	g.half = r[6]
	g.word(0x8000, g.half)
	g.cutConstant(r[7])
	g.word(0x7fffffff, x.absolute)
	g.constant(wildFrom, x.limit)
	tail := GP32()
	MOVQ(address("n"), RCX)
	ANDL(Imm(15), ECX)
	MOVL(U32(1), tail)
	SHLL(CL, tail)
	DECL(tail)
	KMOVW(tail, some)
	KXNORW(x.whole, x.whole, x.whole)
	KXNORW(x.all, x.all, x.all)
	Label("row")
	to, from, n := GP64(), GP64(), GP64()
	MOVQ(dst, to)
	MOVQ(src, from)
	MOVQ(address("n"), n)
	SHRQ(Imm(5), n)
	JZ(LabelRef("half"))
	Label("columns")
	x.thirtyTwo(to, from)
	DECQ(n)
	JNZ(LabelRef("columns"))
	Label("half")
	TESTQ(U32(16), address("n"))
	JZ(LabelRef("tail"))
	x.sixteen(to, from, x.whole)
	ADDQ(Imm(64), from)
	ADDQ(Imm(32), to)
	Label("tail")
	KORTESTW(some, some)
	JZ(LabelRef("next"))
	x.sixteen(to, from, some)
	Label("next")
	ADDQ(dstStep, dst)
	ADDQ(srcStep, src)
	DECQ(rows)
	JNZ(LabelRef("row"))
	storeWhether(x.all)
	g.done()
}

// load loads the columns selected by mask, up to 16, into x. It sets wild elements (NaN, and
// numbers with a magnitude of at least wildFrom) to 0. It clears the bits of wild elements in
// wildless and in g.all.
func (g *splitter) load(from Mem, mask, wildless Op, x, piece VecPhysical) {
	VMOVUPS_Z(from, mask, x)
	VPANDD(g.absolute, x, piece)
	const lessThan = 1
	VCMPPS(Imm(lessThan), g.limit, piece, wildless)
	KANDW(wildless, g.all, g.all)
	VMOVAPS_Z(x, wildless, x)
}

// sixteen splits the columns selected by mask, up to 16, and stores them in the three planes.
func (g *splitter) sixteen(to, from GPVirtual, mask Op) {
	x, piece := g.x[0], g.piece[0]
	g.load(Mem{Base: from}, mask, K4, x, piece)
	for i := range planes - 1 {
		g.split(x, piece)
		VPSRLD(Imm(16), piece, piece)
		VPMOVDW(piece, mask, planeOf(to, g.plane, i))
	}
	VPSRLD(Imm(16), x, x)
	VPMOVDW(x, mask, planeOf(to, g.plane, planes-1))
}

func (g *splitter) thirtyTwo(to, from GPVirtual) {
	PREFETCHT0(Mem{Base: from, Index: g.srcStep, Scale: 8}) // eight rows down: the hardware prefetcher stops at the end of a page
	PREFETCHT0(Mem{Base: from, Index: g.srcStep, Scale: 8, Disp: 64})
	for v, wildless := range []Op{K4, K5} {
		g.load(Mem{Base: from, Disp: 64 * v}, g.whole, wildless, g.x[v], g.piece[v])
	}
	for i := range planes {
		of := g.x // the last plane is the remainder
		if i < planes-1 {
			of = g.piece
			for v := range of {
				g.split(g.x[v], g.piece[v])
			}
		}
		VCVTNE2PS2BF16(of[0], of[1], g.both)
		VMOVDQU32(g.both, planeOf(to, g.plane, i))
	}
	ADDQ(U32(128), from)
	ADDQ(Imm(64), to)
}

// storeWhether emits the store of a routine's result: whether all bits of an opmask are set.
func storeWhether(all Op) {
	yes := GP8()
	KORTESTW(all, all)
	SETCS(yes)
	Store(yes, ReturnIndex(0))
}
