package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A float32 is the sum of three bf16: its upper bits, those of what is left, and
// the rest. So a product of float32 is one of nine products of bf16, of which the
// three smallest are below half a unit in the last place of the largest:
//
//	x y = x0 y0 + (x0 y1 + x1 y0) + (x0 y2 + x1 y1 + x2 y0) + ...
//
// The small ones are summed first, for all columns, so that they are rounded in
// their own units. An operand is three planes of bf16, so many bytes apart.

// planeRoutines emits the routines on planes.
func planeRoutines() {
	planeScores()
	planeValues()
	planeWeights()
	splitRow()
}

// planeScores emits S = K Qᵀ.
func planeScores() {
	routine("planeScores", "func(s *float32, k *uint16, step, kPlane int, q *uint32, qPlane, words, keys int, top *float32)",
		"is scores for planes of K and Q that lie kPlane and qPlane bytes apart.")
	tileScores(func(a GPVirtual) { planeProducts("words", "kPlane", "q", "qPlane", a) })
}

// planeValues emits Oᵀ = alpha Oᵀ + Vᵀ P.
func planeValues() {
	arithmetic("planeValues", "func(o *float32, v *uint32, step, vPlane int, p *uint32, pPlane, pairs, vdim int, alpha, sum *float32)",
		"is addValues for planes of V and P that lie vPlane and pPlane bytes apart.")
	tileValues(func(a GPVirtual) { planeProducts("pairs", "vPlane", "p", "pPlane", a) })
}

// planeProducts adds to four tiles of C the six products, for as many pairs as the
// parameter of that name says. A begins at the address in from.
func planeProducts(pairs, planeA, b, planeB string, from GPVirtual) {
	steps := param(pairs)
	SHRQ(Imm(4), steps)
	moveA := func(op func(Op, Op), times int) {
		for range times {
			for _, a := range tileA {
				op(address(planeA), a)
			}
		}
	}
	loadA := func() {
		for r, a := range tileA {
			TILELOADD(0, a, stepA, 6+r)
		}
	}
	loadB := func() {
		for c := range 2 {
			TILELOADD(c*tileBytes, tileB, stepB, 4+c)
		}
	}
	multiply := func() {
		for t := range 4 {
			TDPBF16PS(4+t%2, 6+t/2, t)
		}
	}
	moveA(ADDQ, 2) // to the third plane
	Label("small")
	loadB()
	loadA()
	multiply()
	for range 2 { // the next plane down of A by the same of B and by the next one
		moveA(SUBQ, 1)
		loadA()
		multiply()
		ADDQ(address(planeB), tileB)
		loadB()
		multiply()
	}
	moveA(ADDQ, 2)
	for _, a := range tileA {
		ADDQ(Imm(tileBytes), a)
	}
	SUBQ(address(planeB), tileB)
	SUBQ(address(planeB), tileB)
	down(tileB, stepB, tileB)
	DECQ(steps)
	JNZ(LabelRef("small"))
	MOVQ(from, tileA[0])
	down(tileA[0], stepA, tileA[1])
	Load(Param(b), tileB)
	tileProducts("large", pairs, 2)
}

// address returns where a parameter lies.
func address(name string) Mem {
	p, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return p.Addr
}

// planeWeights emits P = 2^(S - max), in planes of pairs.
func planeWeights() {
	arithmetic("planeWeights", "func(p *uint32, plane int, s *float32, pairs int, m, top, l, alpha *float32, scale float32)",
		"is weights for planes of P that lie plane bytes apart.")
	plane, piece := param("plane"), registers[9:11]
	splitConstants(registers[11], registers[12])
	weighPairs(param("p"), func(dst GPVirtual, v int, x, y VecPhysical) {
		for i := range 2 {
			split(x, piece[0])
			split(y, piece[1])
			VPSRLD(Imm(16), piece[0], piece[0])
			VPORD(piece[0], piece[1], piece[0])
			VMOVDQU32(piece[0], part(planeOf(dst, plane, i), v))
		}
		VPSRLD(Imm(16), x, x)
		VPANDD(y, upperHalf, y)
		VPORD(x, y, x)
		VMOVDQU32(x, part(planeOf(dst, plane, 2), v))
	})
}

// planeOf returns the address of plane i of 0 to 2.
func planeOf(base, plane GPVirtual, i int) Mem {
	if i == 0 {
		return Mem{Base: base}
	}
	return Mem{Base: base, Index: plane, Scale: uint8(i)}
}

// Registers of split, set by splitConstants.
var half, upperHalf VecPhysical

func splitConstants(h, u VecPhysical) {
	half, upperHalf = h, u
	word(0x8000, half)
	word(0xffff0000, upperHalf)
}

// split moves from x to piece what a bf16 can hold of it. Nothing of a NaN is lost:
// what the carry makes of it is taken from x, and leaves a NaN.
func split(x, piece VecPhysical) {
	VPADDD(half, x, piece)
	VPANDD(upperHalf, piece, piece)
	VSUBPS(piece, x, x)
}

// splitRow emits the packing of a row into planes.
func splitRow() {
	routine("splitRow", "func(dst *uint16, plane int, src *float32, n int) bool",
		"sets dst to the three planes, plane bytes apart, of n elements of src, and to 0 for those that",
		"are not below 2^58, or NaN. It reports whether there are none of these. n > 0.")
	dst, plane, src, n := param("dst"), param("plane"), param("src"), param("n")
	x, piece, limit, absolute := registers[0], registers[1], registers[2], registers[3]
	splitConstants(registers[4], registers[5])
	word(0x7fffffff, absolute)
	constant(0x1p58, limit)
	all, below, yes := GP32(), GP32(), GP32()
	MOVL(U32(1), yes)
	MOVL(U32(0xffff), all)
	Label("columns")
	CMPQ(n, Imm(16))
	JGE(LabelRef("some"))
	MOVQ(n, RCX)
	MOVL(U32(1), all)
	SHLL(CL, all)
	DECL(all)
	Label("some")
	KMOVW(all, K1)
	VMOVUPS_Z(Mem{Base: src}, K1, x)
	VPANDD(absolute, x, piece)
	const lessThan = 1
	VCMPPS(Imm(lessThan), limit, piece, K2)
	KMOVW(K2, below)
	CMPL(below, U32(0xffff))
	JEQ(LabelRef("tame"))
	XORL(yes, yes)
	Label("tame")
	VMOVAPS_Z(x, K2, x)
	for i := range 2 {
		split(x, piece)
		VPSRLD(Imm(16), piece, piece)
		VPMOVDW(piece, K1, planeOf(dst, plane, i))
	}
	VPSRLD(Imm(16), x, x)
	VPMOVDW(x, K1, planeOf(dst, plane, 2))
	ADDQ(Imm(64), src)
	ADDQ(Imm(32), dst)
	SUBQ(Imm(16), n)
	JG(LabelRef("columns"))
	Store(yes.As8(), ReturnIndex(0))
	done()
}
