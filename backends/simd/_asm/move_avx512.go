package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (g *generator) convertAVX512() {
	g.conversionAVX512("widenF16", "func(dst *float32, src *uint16, n int)", "sets dst[i] to the float32 value of the binary16 number src[i], for i < n. n >= 0.", 2, 4,
		func(load, store func(Op)) {
			load(Y0)
			VCVTPH2PS(Y0, Z1)
			store(Z1)
		})
	g.widenBF16AVX512()
	g.conversionAVX512("narrowF16", "func(dst *uint16, src *float32, n int)", "rounds src[i] to the nearest binary16 number, ties to even, and stores it in dst[i], for i < n. n >= 0.", 4, 2,
		func(load, store func(Op)) {
			load(Z0)
			VCVTPS2PH(Imm(0), Z0, Y1) // to nearest, ties to even
			store(Y1)
		})
	g.narrowBF16AVX512()
}

func (g *generator) widenBF16AVX512() {
	g.conversionAVX512("widenBF16", "func(dst *float32, src *uint16, n int)", "sets dst[i] to the float32 value of the bfloat16 number src[i], for i < n. n >= 0.", 2, 4,
		func(load, store func(Op)) {
			load(Y0)
			VPMOVZXWD(Y0, Z1)
			VPSLLD(Imm(16), Z1, Z1)
			store(Z1)
		})
}

func (g *generator) narrowBF16AVX512() {
	one, half, quiet := Z29, Z30, Z31
	g.conversionAVX512("narrowBF16", "func(dst *uint16, src *float32, n int)", "rounds src[i] to the nearest bfloat16 number, ties to even, and stores it in dst[i], for i < n. n >= 0.", 4, 2,
		func(load, store func(Op)) {
			load(Z0)
			VCMPPS(Imm(3), Z0, Z0, K2) // unordered: NaN
			VPSRLD(Imm(16), Z0, Z1)
			VPANDD(one, Z1, Z2)
			VPADDD(half, Z2, Z2)
			VPADDD(Z0, Z2, Z2)
			VPSRLD(Imm(16), Z2, Z2) // to nearest, ties to even
			VPORD(quiet, Z1, K2, Z2)
			VPMOVDW(Z2, Y3)
			store(Y3)
		}, func() {
			g.word(1, one)
			g.word(0x7fff, half)
			g.word(0x40, quiet)
		})
}

// conversionAVX512 emits a loop over 16 elements at a time. It masks the last elements, so that no
// access is beyond the end of the arrays. from and to are the sizes in bytes of an element of src
// and of dst.
func (g *generator) conversionAVX512(name, signature, does string, from, to int, body func(load, store func(Op)), before ...func()) {
	g.routine(name, signature, does)
	dst, src, n := param("dst"), param("src"), param("n")
	for _, f := range before {
		f()
	}
	Label("next")
	CMPQ(n, Imm(16))
	JL(LabelRef("tail"))
	whole := func(m Mem, size int) (func(Op), func(Op)) {
		if size == 4 {
			return func(z Op) { VMOVUPS(m, z) }, func(z Op) { VMOVUPS(z, m) }
		}
		return func(y Op) { VMOVDQU16(m, y) }, func(y Op) { VMOVDQU16(y, m) }
	}
	load, _ := whole(Mem{Base: src}, from)
	_, store := whole(Mem{Base: dst}, to)
	body(load, store)
	ADDQ(U32(uint32(16*from)), src)
	ADDQ(U32(uint32(16*to)), dst)
	SUBQ(Imm(16), n)
	JMP(LabelRef("next"))
	Label("tail")
	TESTQ(n, n)
	JZ(LabelRef("done"))
	ones := GP32()
	MOVQ(n, RCX)
	MOVL(U32(0xffff), ones)
	SHLL(CL, ones)
	NOTL(ones) // the low n bits
	KMOVW(ones, K1)
	part := func(m Mem, size int) (func(Op), func(Op)) {
		if size == 4 {
			return func(z Op) { VMOVUPS_Z(m, K1, z) }, func(z Op) { VMOVUPS(z, K1, m) }
		}
		return func(y Op) { VMOVDQU16_Z(m, K1, y) }, func(y Op) { VMOVDQU16(y, K1, m) }
	}
	load, _ = part(Mem{Base: src}, from)
	_, store = part(Mem{Base: dst}, to)
	body(load, store)
	Label("done")
	g.done()
}
