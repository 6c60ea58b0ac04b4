package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Score features change a score before softmax, or a weight after softmax. The lanes of S are query
// rows in a forward pass, and keys in a backward pass and in decode.

func (g *generator) featureRoutines() {
	g.scoreMod()
	g.maskBits()
	g.dropWeights()
	g.dropoutMask()
	g.gradientsOf()
}

// The approximation of tanh(4z) is z p(z²) / q(z²), a minimax fit on [-2.2, 2.2] with float32
// coefficients and relative error 3e-8. The leading coefficient of q is 1 and has no entry in
// tanhQ. The code multiplies the coefficients of p by the cap, which is the softcap. It clamps the
// result to [-cap, cap], because outside the interval the quotient grows with z.
var (
	tanhP = []float32{77.03678131103516, 165.09329223632812, 69.24309539794922, 6.583954334259033, 0.06924249976873398}
	tanhQ = []float32{19.25919532775879, 143.98899841308594, 127.87250518798828, 26.119110107421875}
)

const (
	tanhScale = 1. / 4
	tanhLimit = 2.375 * 2.375 // of z²: here the quotient exceeds 1 by more than its rounding errors
	capLimit  = 0x1p64        // a larger cap counts as this one: only scores above 2^52 differ
)

// An adjuster holds the operands of scoreMod. With AVX-512, the constants are in registers. With
// AVX2, some constants are in memory, because there are too few registers.
type adjuster struct {
	*generator

	work         [vectors]adjustment
	rowMax, away []VecPhysical // away: the row's position minus the lanes' positions
	scale        VecPhysical   // with softcap, multiplied by a factor so that z = scale·score
	cap, low     VecPhysical   // low = -cap
	slope        VecPhysical
	ps, qs       [5]Op // coefficients of tanh; the last of qs is the limit of z²
	power        Op    // the exponential of storeUncap is 2^(power·|score|)
	inverse      Op    // 1/cap
	one, abs     Op
	s, bias, to  GPVirtual // to: the current row of softcapGrad
	step         GPVirtual
	biasStep     GPVirtual
	rows         GPVirtual
}

// An adjustment holds the registers that modify one vector of scores. The scores are in z.
type adjustment struct{ z, u, p, q VecPhysical }

// A variant is the feature set of a loop of scoreMod.
type variant struct{ softcap, softcapGrad, bias, lanes bool }

// scoreMod emits the routine that modifies scores. Each set of features has its own loop, so that
// absent features cost nothing.
func (g *generator) scoreMod() {
	g.arithmetic("scoreMod", "func(s *float32, step, rows int, rowMax, softcapGrad *float32, scale, softcap float32, bias *float32, biasStep int, lanes *float32, slope, at float32)",
		"scales scores and applies softcap, bias and ALiBi. The steps, for r < rows and",
		"i < LANES:",
		"",
		"  - x = scale·s[r][i]",
		"  - if softcap != 0: t = tanh(x/softcap), x = softcap·t, and softcapGrad[r][i] = 1 - t² unless",
		"    softcapGrad is nil",
		"  - if bias is not nil: x = x + bias[r][i]",
		"  - if lanes is not nil: x = x - slope·|at+r-lanes[i]|, where at+r and lanes[i] differ by less",
		"    than 2^24",
		"  - s[r][i] = x",
		"",
		"The routine then raises rowMax[i] to the largest s[r][i], ignoring NaN. Rows of s and softcapGrad",
		"are step elements apart. Rows of bias are biasStep elements apart. softcap >= 0, and",
		"scale/softcap is not denormal. rows > 0.")
	a := g.newAdjuster()
	a.choose()
	g.done()
}

func (g *generator) newAdjuster() *adjuster {
	r := g.registers
	a := &adjuster{
		generator: g,

		work:   [vectors]adjustment{{r[0], r[1], r[2], r[3]}, {r[4], r[5], r[6], r[7]}},
		rowMax: r[8:10], away: r[10:12], scale: r[12], cap: r[13], low: r[14], slope: r[15],
		s: param("s"), step: bytes(param("step")), rows: param("rows"), to: param("softcapGrad"),
		bias: param("bias"), biasStep: bytes(param("biasStep")),
	}
	constants := append([]uint32{math.Float32bits(1), 0x7fffffff}, floatBits(append(tanhQ, tanhLimit)...)...)
	for i, to := range []*Op{&a.one, &a.abs, &a.qs[0], &a.qs[1], &a.qs[2], &a.qs[3], &a.qs[4]} {
		if g.avx512 {
			g.word(constants[i], r[16+i])
			*to = r[16+i]
		} else {
			*to = g.everyLane("adjustConstants", constants).Offset(i * g.vectorBytes)
		}
	}
	rowMax := param("rowMax")
	for v, z := range a.rowMax {
		VMOVUPS(g.part(Mem{Base: rowMax}, v), z)
	}
	floatParam("scale", a.scale)
	return a
}

func floatBits(x ...float32) (bits []uint32) {
	for _, x := range x {
		bits = append(bits, math.Float32bits(x))
	}
	return bits
}

func (a *adjuster) choose() {
	softcap := GP32()
	MOVL(address("softcap"), softcap)
	SHLL(Imm(1), softcap) // shifts the sign out: -0 is 0
	JZ(LabelRef("linear"))
	a.softcapConstants()
	a.exp2Memory()
	TESTQ(a.to, a.to)
	JZ(LabelRef("capped"))
	a.chooseTerms("uncapped", variant{softcap: true, softcapGrad: true})
	a.chooseTerms("capped", variant{softcap: true})
	a.chooseTerms("linear", variant{})
	Label("end")
	rowMax := param("rowMax")
	for v, z := range a.rowMax {
		VMOVUPS(z, a.part(Mem{Base: rowMax}, v))
	}
}

func (a *adjuster) chooseTerms(label string, v variant) {
	Label(label)
	lanes := param("lanes")
	TESTQ(lanes, lanes)
	JZ(LabelRef(label + "Level"))
	a.lanesConstants(lanes)
	v.lanes = true
	a.chooseBias(label+"Sloped", v)
	Label(label + "Level")
	v.lanes = false
	a.chooseBias(label, v)
}

func (a *adjuster) chooseBias(label string, v variant) {
	TESTQ(a.bias, a.bias)
	JZ(LabelRef(label + "Unbiased"))
	v.bias = true
	a.loop(label+"Rows", v)
	Label(label + "Unbiased")
	v.bias = false
	a.loop(label+"UnbiasedRows", v)
}

func (a *adjuster) softcapConstants() {
	t, u := a.work[0].z, a.work[0].u
	floatParam("softcap", a.cap)
	a.constant(capLimit, t)
	VMINPS(t, a.cap, a.cap)
	VXORPS(t, t, t)
	VSUBPS(a.cap, t, a.low)
	VDIVPS(a.cap, a.scale, a.scale)
	a.constant(tanhScale, t)
	VMULPS(t, a.scale, a.scale)
	a.constant(math.MaxFloat32, t)
	VMINPS(t, a.scale, a.scale) // an infinite scale would turn a score of 0 into NaN
	a.constant(-2*math.Log2E/tanhScale, u)
	VMULPS(a.scale, u, u)
	a.constant(-math.MaxFloat32, t)
	VMAXPS(t, u, t)
	room := Mem{}
	if !a.avx512 {
		room = AllocLocal((2 + len(tanhP)) * a.vectorBytes)
	}
	keep := func(i int, z VecPhysical) Op {
		if a.avx512 {
			VMOVAPS(z, a.registers[23+i])
			return a.registers[23+i]
		}
		VMOVUPS(z, room.Offset(i*a.vectorBytes))
		return room.Offset(i * a.vectorBytes)
	}
	a.power = keep(0, t)
	a.constant(1, t)
	VDIVPS(a.cap, t, t)
	a.constant(math.MaxFloat32, u)
	VMINPS(u, t, t) // an infinite 1/cap would turn a score of 0 into NaN
	a.inverse = keep(1, t)
	for i, c := range tanhP {
		a.constant(c, u)
		VMULPS(a.cap, u, u)
		a.ps[i] = keep(2+i, u)
	}
}

func (a *adjuster) lanesConstants(lanes GPVirtual) {
	floatParam("slope", a.slope)
	floatParam("at", a.work[0].z)
	for v, z := range a.away {
		VSUBPS(a.part(Mem{Base: lanes}, v), a.work[0].z, z)
	}
}

func (a *adjuster) loop(label string, has variant) {
	Label(label)
	if has.softcap {
		a.tanh()
	}
	if has.softcapGrad {
		a.storeUncap()
	}
	for v, w := range a.work {
		a.terms(v, w, has)
		VMOVUPS(w.z, a.part(Mem{Base: a.s}, v))
		VMAXPS(a.rowMax[v], w.z, a.rowMax[v]) // a NaN score leaves the maximum as it is
	}
	ADDQ(a.step, a.s)
	if has.softcapGrad {
		ADDQ(a.step, a.to)
	}
	if has.bias {
		ADDQ(a.biasStep, a.bias)
	}
	DECQ(a.rows)
	JNZ(LabelRef(label))
	JMP(LabelRef("end"))
}

// terms adds the bias and the ALiBi term to one vector of scores. Without softcap, the code first
// loads and scales the vector.
func (a *adjuster) terms(v int, w adjustment, has variant) {
	score, bias := a.part(Mem{Base: a.s}, v), a.part(Mem{Base: a.bias}, v)
	switch {
	case has.softcap && has.bias:
		VADDPS(bias, w.z, w.z)
	case has.bias:
		VMOVUPS(bias, w.z)
		VFMADD231PS(score, a.scale, w.z)
	case !has.softcap:
		VMULPS(score, a.scale, w.z)
	}
	if has.lanes {
		VANDPS(a.abs, a.away[v], w.u)
		VFNMADD231PS(a.slope, w.u, w.z)
		VADDPS(a.one, a.away[v], a.away[v])
	}
}

// each emits one step of a computation for all vectors of a row, so that the vectors' latencies
// overlap.
func (a *adjuster) each(f func(v int, w adjustment)) {
	for v, w := range a.work {
		f(v, w)
	}
}

// tanh loads a row of scores and sets z to cap·tanh(4·scale·score). Above the limit of z² both
// polynomials stay constant. The quotient then grows with z, and the code clamps the quotient to
// [-cap, cap].
func (a *adjuster) tanh() { a.tanhOf(func(v int) Mem { return a.part(Mem{Base: a.s}, v) }) }

// tanhOf is tanh for the vectors at the addresses that score returns.
func (a *adjuster) tanhOf(score func(v int) Mem) {
	each := a.each
	each(func(v int, w adjustment) { VMULPS(score(v), a.scale, w.z) })
	each(func(_ int, w adjustment) { VMULPS(w.z, w.z, w.u) })
	each(func(_ int, w adjustment) { VMINPS(a.qs[4], w.u, w.u) })
	each(func(_ int, w adjustment) { VMOVUPS(a.ps[4], w.p) })
	each(func(_ int, w adjustment) { VADDPS(a.qs[3], w.u, w.q) })
	for i := 3; i >= 0; i-- {
		each(func(_ int, w adjustment) { VFMADD213PS(a.ps[i], w.u, w.p) })
		if i < 3 {
			each(func(_ int, w adjustment) { VFMADD213PS(a.qs[i], w.u, w.q) })
		}
	}
	each(func(_ int, w adjustment) { VMULPS(w.p, w.z, w.z) })
	each(func(_ int, w adjustment) { VDIVPS(w.q, w.z, w.z) })
	each(func(_ int, w adjustment) { VMINPS(w.z, a.cap, w.z) }) // this operand order keeps a NaN in z
	each(func(_ int, w adjustment) { VMAXPS(w.z, a.low, w.z) })
}

// storeUncap stores the derivative 1-t² of softcap for one row. Here t = tanh(x), and x is the
// scaled score divided by the cap. storeUncap computes 1-t² as exp(-2|x|)·(1+|t|)², because the
// difference 1-t² loses its digits near the cap. The exponential is a power of 2, with |score|
// times a constant as exponent.
func (a *adjuster) storeUncap() {
	each := a.each
	each(func(v int, w adjustment) { VMOVUPS(a.part(Mem{Base: a.s}, v), w.u) })
	each(func(_ int, w adjustment) { VANDPS(a.abs, w.u, w.u) })
	each(func(_ int, w adjustment) { VMULPS(a.power, w.u, w.u) })
	each(func(_ int, w adjustment) { a.exp2(w.u, w.p, w.q) })
	each(func(_ int, w adjustment) { VANDPS(a.abs, w.z, w.p) })
	each(func(_ int, w adjustment) { VMOVUPS(a.one, w.q) })
	each(func(_ int, w adjustment) { VFMADD231PS(a.inverse, w.p, w.q) })
	each(func(_ int, w adjustment) { VMULPS(w.q, w.u, w.u) })
	each(func(_ int, w adjustment) { VMULPS(w.q, w.u, w.u) })
	each(func(v int, w adjustment) { VMOVUPS(w.u, a.part(Mem{Base: a.to}, v)) })
}

func (g *generator) maskBits() {
	g.routine("maskBits", "func(masks *uint32, mask *bool, step, rows int)",
		"packs rows of booleans into words. For i < LANES, bit i of masks[r] is 1 if",
		"mask[r][i] is true. All other bits are 0. Rows of mask are step bytes apart. The routine reads",
		"LANES bytes of each row. rows > 0.")
	masks, mask, step, rows := param("masks"), param("mask"), param("step"), param("rows")
	x, zero := g.registers[0].AsX(), g.registers[1].AsX()
	VPXOR(zero, zero, zero)
	bits := GP32()
	Label("row")
	if g.avx512 {
		y := g.registers[0].AsY()
		VMOVDQU(Mem{Base: mask}, y)
		VPTESTMB(y, y, K1)
		KMOVD(K1, Mem{Base: masks})
	} else {
		VPCMPEQB(Mem{Base: mask}, zero, x)
		VPMOVMSKB(x, bits)
		XORL(U32(uint32(1<<g.lanes-1)), bits)
		MOVL(bits, Mem{Base: masks})
	}
	ADDQ(step, mask)
	ADDQ(Imm(4), masks)
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}
