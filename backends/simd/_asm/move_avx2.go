package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (g *generator) convertAVX2() {
	g.conversionAVX2("widenF16", "func(dst *float32, src *uint16, n int)", "sets dst[i] to the float32 value of the binary16 number src[i], for i < n. n >= 8.", 2, 4,
		func(src, dst Mem) {
			VCVTPH2PS(src, Y0)
			VMOVUPS(Y0, dst)
		})
	g.widenBF16AVX2()
	g.conversionAVX2("narrowF16", "func(dst *uint16, src *float32, n int)", "rounds src[i] to the nearest binary16 number, ties to even, and stores it in dst[i], for i < n. n >= 8.", 4, 2,
		func(src, dst Mem) {
			VMOVUPS(src, Y0)
			VCVTPS2PH(Imm(0), Y0, dst) // to nearest, ties to even
		})
	g.narrowBF16AVX2()
}

func (g *generator) widenBF16AVX2() {
	g.conversionAVX2("widenBF16", "func(dst *float32, src *uint16, n int)", "sets dst[i] to the float32 value of the bfloat16 number src[i], for i < n. n >= 8.", 2, 4,
		func(src, dst Mem) {
			VPMOVZXWD(src, Y0)
			VPSLLD(Imm(16), Y0, Y0)
			VMOVUPS(Y0, dst)
		})
}

func (g *generator) narrowBF16AVX2() {
	one, half, quiet := Y13, Y14, Y15
	g.conversionAVX2("narrowBF16", "func(dst *uint16, src *float32, n int)", "rounds src[i] to the nearest bfloat16 number, ties to even, and stores it in dst[i], for i < n. n >= 8.", 4, 2,
		func(src, dst Mem) {
			VMOVUPS(src, Y0)
			VPSRLD(Imm(16), Y0, Y1)
			VPAND(one, Y1, Y2)
			VPADDD(half, Y2, Y2)
			VPADDD(Y0, Y2, Y2)
			VPSRLD(Imm(16), Y2, Y2) // to nearest, ties to even
			VPOR(quiet, Y1, Y1)
			VCMPPS(Imm(3), Y0, Y0, Y0) // unordered: NaN
			VBLENDVPS(Y0, Y1, Y2, Y2)
			VEXTRACTI128(Imm(1), Y2, X3)
			VPACKUSDW(X3, X2, X2)
			VMOVDQU(X2, dst)
		}, func() {
			g.word(1, one)
			g.word(0x7fff, half)
			g.word(0x40, quiet)
		})
}

// conversionAVX2 emits a loop over 8 elements at a time. The last 8 may overlap the 8 before them,
// so that no access is beyond the end of the arrays. from and to are the sizes in bytes of an
// element of src and of dst.
func (g *generator) conversionAVX2(name, signature, does string, from, to uint8, body func(src, dst Mem), before ...func()) {
	g.routine(name, signature, does)
	dst, src, n := param("dst"), param("src"), param("n")
	for _, f := range before {
		f()
	}
	i := GP64()
	XORQ(i, i)
	SUBQ(Imm(8), n)
	Label("next")
	CMPQ(i, n)
	JGE(LabelRef("last"))
	at := func(i GPVirtual) (Mem, Mem) {
		return Mem{Base: src, Index: i, Scale: from}, Mem{Base: dst, Index: i, Scale: to}
	}
	body(at(i))
	ADDQ(Imm(8), i)
	JMP(LabelRef("next"))
	Label("last")
	body(at(n))
	g.done()
}

// cpuidF16C emits the routine that queries F16C. The package golang.org/x/sys/cpu does not report
// it.
func cpuidF16C() {
	TEXT("hasF16C", NOSPLIT, "func() bool")
	Doc("hasF16C reports whether the processor has F16C, the instructions that convert float16. F16C also needs AVX.")
	MOVL(U32(1), EAX)
	XORL(ECX, ECX)
	CPUID()
	SHRL(Imm(29), ECX)
	ANDL(Imm(1), ECX)
	Store(CL, ReturnIndex(0))
	RET()
}
