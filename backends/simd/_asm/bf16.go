package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The products of AVX512-BF16 are of pairs: two neighbors of one row, or two
// rows of one column. A pair is a 32-bit word, with the first one in the low half,
// so that broadcasts, loads and loops are those of float32.

// bf16Routines emits the routines on pairs. For all else the kernels take those
// of AVX512.
func bf16Routines() {
	scores(false)
	values(false)
	dots()
	gradients()
	for _, transposed := range []bool{false, true} {
		product(transposed, false)
		product(transposed, true)
	}
	transposePairs()
	pairRows()
	narrowPairs()
	narrowRows()
	limits()
}

// bytes16 turns a number of 16-bit elements into bytes.
func bytes16(elements Register) GPVirtual {
	r := elements.(GPVirtual)
	SHLQ(Imm(1), r)
	return r
}

// halfStep is step for the last column of rows of odd length, which is all that
// it reads. The other half of the pair is 0, in b too.
func halfStep(label string, dim GPVirtual, acc [][]VecPhysical, b Mem, element func(r int) Mem) {
	TESTQ(U32(1), dim)
	JZ(LabelRef(label + "even"))
	lowHalves := GP32()
	MOVL(U32(0x55555555), lowHalves)
	KMOVD(lowHalves, K1)
	for v, z := range lanesB {
		VMOVUPS(part(b, v), z)
	}
	for r := range acc {
		x := broadcasts[r%len(broadcasts)]
		VPBROADCASTW_Z(element(r), K1, x)
		for v, z := range lanesB {
			multiplyAdd(x, z, acc[r][v])
		}
	}
	Label(label + "even")
}

// transposePairs emits the transpose of one block of 16 x 16 pairs.
func transposePairs() {
	routine("transposePairs", "func(dst *uint32, dstStep int, src *uint16, srcStep int)",
		"sets dst[c][r] to the pair src[r][2c], src[r][2c+1] for a block of 16 rows of 32",
		"elements. Rows lie dstStep pairs and srcStep elements apart.")
	dst, dstStep := param("dst"), bytes(param("dstStep"))
	src, srcStep := param("src"), bytes16(param("srcStep"))
	transposeBlock(dst, dstStep, src, srcStep, func(int, []VecPhysical) {})
	done()
}

// pairRows emits the packing of V, and of what the backward pass sums over.
func pairRows() {
	routine("pairRows", "func(dst *uint32, src *uint16, step, n, pairs int)",
		"sets dst[j][c] to the pair src[2j][c], src[2j+1][c] for pairs pairs of rows of n",
		"elements, step elements apart. dst is [pairs][n]. pairs > 0, n > 0.")
	dst, src, step, n, pairs := param("dst"), param("src"), bytes16(param("step")), param("n"), param("pairs")
	x, y := registers[0], registers[1]
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
	LEAQ(Mem{Base: dst, Index: left, Scale: 4}, dst) // back by what the last vector went too far
	LEAQ(Mem{Base: src, Index: step, Scale: 2}, src)
	DECQ(pairs)
	JNZ(LabelRef("pair"))
	done()
}

// pairOrder is the permutation that makes pairs of the halves of a vector.
var pairOrder *Mem

func loadPairOrder(z VecPhysical) {
	if pairOrder == nil {
		m := GLOBL("pairOrder", RODATA|NOPTR)
		for i := range 16 {
			DATA(4*i, U32(uint32(i|(i+16)<<16)))
		}
		pairOrder = &m
	}
	VMOVDQU32(*pairOrder, z)
}

// narrowPairs emits the packing of P and dS for sums over their rows.
func narrowPairs() {
	routine("narrowPairs", "func(dst *uint32, src *float32, step, pairs int)",
		"sets dst[j][i] to the pair src[2j][i], src[2j+1][i], rounded to bf16. dst is",
		"[pairs][LANES], rows of src lie step elements apart. pairs > 0.")
	dst, src, step, pairs := param("dst"), param("src"), bytes(param("step")), param("pairs")
	permutation := registers[4]
	loadPairOrder(permutation)
	Label("pair")
	for v := range vectors {
		x, y := registers[v], registers[2+v]
		VMOVUPS(part(Mem{Base: src}, v), x)
		VMOVUPS(part(Mem{Base: src, Index: step, Scale: 1}, v), y)
		VCVTNE2PS2BF16(x, y, x)
		VPERMW(x, permutation, x)
		VMOVDQU32(x, part(Mem{Base: dst}, v))
	}
	LEAQ(Mem{Base: src, Index: step, Scale: 2}, src)
	ADDQ(U32(uint32(rowBytes)), dst)
	DECQ(pairs)
	JNZ(LabelRef("pair"))
	done()
}

// narrowRows emits the rounding of dS for sums over its columns.
func narrowRows() {
	routine("narrowRows", "func(dst *uint16, src *float32, step, rows int)",
		"sets dst[j][i] to src[j][i], rounded to bf16, for LANES columns i. Rows of both lie",
		"step elements apart. rows > 0.")
	dst, src, step4, rows := param("dst"), param("src"), bytes(param("step")), param("rows")
	step2 := GP64()
	MOVQ(step4, step2)
	SHRQ(Imm(1), step2)
	x, y := registers[0], registers[1]
	Label("row")
	VMOVUPS(part(Mem{Base: src}, 0), x)
	VMOVUPS(part(Mem{Base: src}, 1), y)
	VCVTNE2PS2BF16(x, y, x)
	VMOVDQU32(x, Mem{Base: dst})
	ADDQ(step4, src)
	ADDQ(step2, dst)
	DECQ(rows)
	JNZ(LabelRef("row"))
	done()
}
