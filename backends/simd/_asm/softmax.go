package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// constant loads x into every lane of z.
func constant(x float32, z VecPhysical) {
	r := GP32()
	MOVL(U32(math.Float32bits(x)), r)
	VPBROADCASTD(r, z)
}

// Registers of exp2: the polynomial's coefficients and the lowest argument.
var (
	expLow = Z24
	expC   = []VecPhysical{Z25, Z26, Z27, Z28, Z29, Z30} // c0 to c5
)

// exp2Constants loads the constants of exp2. The polynomial is the minimax fit
// of degree 5 to 2^f on [-1/2, 1/2] with c0 = 1, relative error 1e-7.
func exp2Constants() {
	constant(-200, expLow) // 2^-200 is 0 in float32
	for i, c := range []float32{1, 0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957, 0.001326472731307149} {
		constant(c, expC[i])
	}
}

// exp2 sets x to 2^x: x = n + f, n whole, |f| <= 1/2, 2^f by polynomial, then
// scaled by 2^n. It is 0 for -Inf and keeps a NaN. n and p are scratch.
func exp2(x, n, p VecPhysical) {
	VMAXPS(x, expLow, x) // in this order it returns x when x is NaN
	VRNDSCALEPS(Imm(0), x, n)
	VSUBPS(n, x, x)
	VMOVAPS(expC[5], p)
	for i := 4; i >= 0; i-- {
		VFMADD213PS(expC[i], x, p)
	}
	VSCALEFPS(n, p, x)
}

// maskScores emits the masking of an edge block.
func maskScores() {
	routine("maskScoresAVX512", "func(s *float32, masks *uint32, keys int, top *float32)")
	Doc("maskScoresAVX512 sets s[j][i] to -Inf where bit i of masks[j] is clear and raises top[i] to the",
		"largest of the others. s is [keys][32]. keys > 0.")
	s, masks, keys, top := param("s"), param("masks"), param("keys"), param("top")
	constant(float32(math.Inf(-1)), Z31)
	max, opmask := []VecPhysical{Z28, Z29}, []OpmaskPhysical{K1, K2}
	for v, z := range max {
		VMOVUPS(Mem{Base: top, Disp: v * 64}, z)
	}
	Label("key")
	for v, z := range max {
		KMOVW(Mem{Base: masks, Disp: v * 2}, opmask[v])
		VBLENDMPS(Mem{Base: s, Disp: v * 64}, Z31, opmask[v], Z0)
		VMOVUPS(Z0, Mem{Base: s, Disp: v * 64})
		VMAXPS(z, Z0, z)
	}
	ADDQ(U32(rowBytes), s)
	ADDQ(Imm(4), masks)
	DECQ(keys)
	JNZ(LabelRef("key"))
	for v, z := range max {
		VMOVUPS(z, Mem{Base: top, Disp: v * 64})
	}
	VZEROUPPER()
	RET()
}

// weights emits P = 2^(S - max), in place, with the running maximum and sum.
func weights() {
	routine("weightsAVX512", "func(s *float32, keys int, m, top, l, alpha *float32)")
	Doc("weightsAVX512 sets s[j][i] = 2^(s[j][i] - top[i]), alpha[i] = 2^(m[i] - top[i]), m[i] = top[i] and",
		"l[i] = alpha[i]*l[i] + the sum over j of the new s[j][i]. A top of -Inf counts as the lowest",
		"finite number. s is [keys][32]. keys > 0.")
	s, keys, m, top, l, alpha := param("s"), param("keys"), param("m"), param("top"), param("l"), param("alpha")
	exp2Constants()
	constant(-math.MaxFloat32, Z31)
	shift, sum := []VecPhysical{Z16, Z17}, []VecPhysical{Z18, Z19}
	scratch := func(v int) (x, n, p VecPhysical) {
		all := []VecPhysical{Z0, Z1, Z2, Z3, Z4, Z5}
		return all[3*v], all[3*v+1], all[3*v+2]
	}
	for v := range vectors {
		at := func(base GPVirtual) Mem { return Mem{Base: base, Disp: v * 64} }
		x, n, p := scratch(v)
		VMOVUPS(at(top), shift[v])
		VMOVUPS(at(m), x)
		VMOVUPS(shift[v], at(m))
		VMAXPS(shift[v], Z31, shift[v])
		VSUBPS(shift[v], x, x)
		exp2(x, n, p)
		VMOVUPS(x, at(alpha))
		VMULPS(at(l), x, sum[v])
	}
	Label("key")
	for v := range vectors {
		x, n, p := scratch(v)
		VMOVUPS(Mem{Base: s, Disp: v * 64}, x)
		VSUBPS(shift[v], x, x)
		exp2(x, n, p)
		VMOVUPS(x, Mem{Base: s, Disp: v * 64})
		VADDPS(x, sum[v], sum[v])
	}
	ADDQ(U32(rowBytes), s)
	DECQ(keys)
	JNZ(LabelRef("key"))
	for v := range vectors {
		VMOVUPS(sum[v], Mem{Base: l, Disp: v * 64})
	}
	VZEROUPPER()
	RET()
}
