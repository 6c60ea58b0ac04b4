package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (g *generator) rowRoutines() {
	if !g.avx512 {
		clearLines()
	}
	g.copyRows(false)
	g.copyRows(true)
	g.packRows()
	g.scaleRows()
	g.splitRow(false)
	g.splitRow(true)
}

// splitRow emits the routine that puts the even elements of each group first, or its reverse.
func (g *generator) splitRow(back bool) {
	n := 2 * g.vectorBytes / 4 // elements of a group
	name, does := "splitRow", "moves the even elements of each group of %d elements of x before the odd ones"
	if back {
		name, does = "joinRow", "reverses splitRow"+g.suffix+", with groups of %d elements"
	}
	g.routine(name, "func(x *float32, n int)", fmt.Sprintf(does, n)+fmt.Sprintf(". n, the number of elements, is a positive multiple of %d.", n))
	x, left := param("x"), param("n")
	at := func(v int) Mem { return Mem{Base: x, Disp: 32 * v} }
	Label("group")
	pairs := n / 16 // of vectors of 8 elements
	r := make([]VecPhysical, 4*pairs)
	for i := range r {
		r[i] = g.registers[i].AsY().(VecPhysical)
	}
	in, out := r[:2*pairs], r[2*pairs:]
	for i, z := range in {
		VMOVUPS(at(i), z)
	}
	for i := range pairs {
		if back { // in has the even elements, then the odd ones
			even, odd := in[i], in[pairs+i]
			low, high := out[2*i], out[2*i+1]
			VUNPCKLPS(odd, even, low)
			VUNPCKHPS(odd, even, high)
			VPERM2F128(Imm(0x20), high, low, even)
			VPERM2F128(Imm(0x31), high, low, odd)
			VMOVUPS(even, at(2*i))
			VMOVUPS(odd, at(2*i+1))
			continue
		}
		even, odd := out[2*i], out[2*i+1]
		first, second := in[2*i], in[2*i+1]
		VPERM2F128(Imm(0x20), second, first, even)
		VPERM2F128(Imm(0x31), second, first, odd)
		VSHUFPS(Imm(0x88), odd, even, first)
		VSHUFPS(Imm(0xdd), odd, even, odd)
		VMOVUPS(first, at(i))
		VMOVUPS(odd, at(pairs+i))
	}
	ADDQ(U32(uint32(4*n)), x)
	SUBQ(U32(uint32(n)), left)
	JNZ(LabelRef("group"))
	g.done()
}

// scaleRows emits the routine that finishes rows of O in workspace.
func (g *generator) scaleRows() {
	g.arithmetic("scaleRows", "func(x *float32, step, n, rows int, by *float32)",
		"multiplies x[r][i] by by[r] for r < rows and i < n. Rows of x are step elements apart. n is a",
		"multiple of 16. n, rows > 0.")
	x, step, n, rows, by := param("x"), bytes(param("step")), bytes(param("n")), param("rows"), param("by")
	factor, z, i := g.registers[0], g.registers[1], GP64()
	Label("row")
	VBROADCASTSS(Mem{Base: by}, factor)
	XORQ(i, i)
	Label("vector")
	at := Mem{Base: x, Index: i, Scale: 1}
	VMULPS(at, factor, z)
	VMOVUPS(z, at)
	ADDQ(U32(uint32(g.vectorBytes)), i)
	CMPQ(i, n)
	JL(LabelRef("vector"))
	ADDQ(step, x)
	ADDQ(Imm(4), by)
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}

func (g *generator) copyRows(add bool) {
	const signature = "func(dst *float32, step int, src *float32, rows int)"
	if add {
		g.arithmetic("addRows", signature,
			"adds src[r][i] to dst[r][i] for r < rows and i < LANES. Rows of dst are step elements apart. Rows",
			"of src are contiguous. rows > 0.")
	} else {
		g.routine("copyRows", signature,
			"sets dst[r][i] = src[r][i] for r < rows and i < LANES. Rows of dst are step elements apart. Rows",
			"of src are contiguous. rows > 0.")
	}
	dst, step, src, rows := param("dst"), bytes(param("step")), param("src"), param("rows")
	Label("row")
	for v, z := range g.registers[:vectors] {
		VMOVUPS(g.part(Mem{Base: src}, v), z)
		if add {
			VADDPS(g.part(Mem{Base: dst}, v), z, z)
		}
		VMOVUPS(z, g.part(Mem{Base: dst}, v))
	}
	ADDQ(U32(uint32(g.rowBytes)), src)
	ADDQ(step, dst)
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}

// packRows emits the routine that removes the gaps between rows.
func (g *generator) packRows() {
	g.routine("packRows", "func(dst, src *float32, step, n, rows int)",
		"sets dst[r][i] = src[r][i] for r < rows and i < n. Rows of dst are contiguous. Rows of src are step",
		"elements apart. n is a multiple of 16. n, rows > 0.")
	dst, src, step, n, rows, i := param("dst"), param("src"), bytes(param("step")), bytes(param("n")), param("rows"), GP64()
	const part = 64 // bytes
	Label("row")
	XORQ(i, i)
	Label("part")
	for v, z := range g.registers[:part/g.vectorBytes] {
		VMOVUPS(g.part(Mem{Base: src, Index: i, Scale: 1}, v), z)
		VMOVUPS(z, g.part(Mem{Base: dst, Index: i, Scale: 1}, v))
	}
	ADDQ(Imm(part), i)
	CMPQ(i, n)
	JL(LabelRef("part"))
	ADDQ(step, src)
	ADDQ(n, dst)
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}

// clearLines emits the routine that clears memory with non-temporal stores. An ordinary store would
// first read its cache line from memory. The routine needs only SSE, which every amd64 processor
// has.
func clearLines() {
	TEXT("clearLines", NOSPLIT, "func(p *byte, lines int)")
	Pragma("noescape")
	Doc("clearLines sets cache lines to 0 with non-temporal stores. p is the address of the first line, and lines is the number of lines. lines > 0.")
	p, lines := param("p"), param("lines")
	XORPS(X0, X0)
	Label("line")
	for i := range line / 16 {
		MOVNTPS(X0, Mem{Base: p, Disp: 16 * i})
	}
	ADDQ(Imm(line), p)
	DECQ(lines)
	JNZ(LabelRef("line"))
	SFENCE()
	RET()
}
