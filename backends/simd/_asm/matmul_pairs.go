package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (g *generator) pairProducts() {
	for vectors := 1; vectors <= 3; vectors++ {
		g.multiplyPanel(vectors)
	}
	g.roundRows()
}

func (g *generator) roundRows() {
	g.routine("roundRows", "func(dst *uint32, dstStep, dstNext int, src *float32, srcStep, n, rows int)",
		"rounds each row of src to bf16. The first n elements of a row of src go to",
		"the same row of dst. In dst, zeros follow these elements, up to a multiple of 32. Rows of dst are",
		"dstStep pairs of bf16 apart, and groups of 16 pairs of a row dstNext pairs. Rows of src are srcStep",
		"elements apart. n, rows > 0.")
	dst, dstStep, dstNext, src, srcStep, n, rows := param("dst"), bytes(param("dstStep")), bytes(param("dstNext")), param("src"), bytes(param("srcStep")), param("n"), param("rows")
	low, high := g.registers[0], g.registers[1]
	// K1 and K2 select the elements after the last whole group of 32: K1 the first 16 elements, K2
	// the others.
	bits := GP64()
	MOVQ(n, RCX)
	ANDL(Imm(31), ECX)
	MOVQ(U32(1), bits)
	SHLQ(CL, bits)
	DECQ(bits)
	KMOVW(bits.As32(), K1)
	SHRQ(Imm(16), bits)
	KMOVW(bits.As32(), K2)
	Label("row")
	to, from, left := GP64(), GP64(), GP64()
	MOVQ(dst, to)
	MOVQ(src, from)
	MOVQ(n, left)
	SHRQ(Imm(5), left)
	JZ(LabelRef("tail"))
	Label("columns")
	VMOVUPS(Mem{Base: from}, low)
	VMOVUPS(Mem{Base: from, Disp: 64}, high)
	VCVTNE2PS2BF16(low, high, low)
	VMOVUPS(low, Mem{Base: to})
	ADDQ(U32(128), from)
	ADDQ(dstNext, to)
	DECQ(left)
	JNZ(LabelRef("columns"))
	Label("tail")
	TESTQ(U32(31), n)
	JZ(LabelRef("next"))
	VMOVUPS_Z(Mem{Base: from}, K1, low)
	VMOVUPS_Z(Mem{Base: from, Disp: 64}, K2, high)
	VCVTNE2PS2BF16(low, high, low)
	VMOVUPS(low, Mem{Base: to})
	Label("next")
	ADDQ(dstStep, dst)
	ADDQ(srcStep, src)
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}
