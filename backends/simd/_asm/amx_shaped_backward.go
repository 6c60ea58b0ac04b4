package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// A dotShaper is a shaper of backward passes. Rows of S are query rows, and lanes of S are keys.
// Biases are in float32 or bf16, and there are no maxima.
//
// softcap and its derivative share the exponential e = exp(-2|x|), where x is the argument of tanh:
//
//	|tanh(x)| = (1-e)/(1+e), 1-tanh(x)^2 = 4e/(1+e)^2
//
// Near x = 0 the first formula has a small absolute error, but not a small relative error. The
// later rounding to bf16 hides this error. The second formula loses no digits to cancellation near
// the cap.
type dotShaper struct{ shaper }

func (g *generator) shapedDots() {
	g.arithmetic("shapedDots", "func(s *float32, k *uint16, step int, q *uint32, words, keys int, softcapGrad *float32, scale, softcap float32, bias *float32, halves *uint16, biasStep int, lanes *float32, slope, at float32)",
		"computes the modified scores of a backward pass, for j < keys and i < LANES.",
		"s[j][i] is the dot product of row j of k and column i of q, as in scoresAMXBF16. Softcap, bias",
		"and ALiBi then change s[j][i] as in scoreModAVX512. The routine computes no maxima.",
		"",
		"The bias is the float32 matrix bias. If bias is nil, the bias is the bf16 matrix halves. If bias",
		"and halves are nil, there is no bias. Rows of the bias are biasStep elements apart. If",
		"softcap != 0, softcapGrad[j][i] gets the derivative of softcap, where softcapGrad is",
		"[keys][LANES]. With softcap, the absolute error of a score is a few units in the last place of",
		"softcap. The routine rounds keys up to an even number.")
	a := &dotShaper{*g.newShaper()}
	a.asks = []asked{{"lanes", shapedLanes}, {"bias", shapedBias}, {"halves", shapedHalves}}
	a.caps, a.row, a.next = a.capConstants, a.dotRow, a.nextDots
	a.masks, a.bias = param("softcapGrad"), param("bias")
	step := bytes16(param("biasStep"))
	TESTQ(a.bias, a.bias)
	JZ(LabelRef("halves"))
	SHLQ(Imm(1), step)
	JMP(LabelRef("apart"))
	Label("halves")
	MOVQ(address("halves"), a.bias)
	Label("apart")
	MOVQ(step, a.frame.Offset(frameBias))
	a.panels()
	g.done()
}

func (a *dotShaper) capConstants() {
	t, u := a.work[0].z, a.work[0].u
	a.exp2Constants()
	floatParam("softcap", a.cap)
	VDIVPS(a.cap, a.scale, u)
	a.constant(-2*math.Log2E, t)
	VMULPS(t, u, u)
	a.constant(-math.MaxFloat32, t)
	VMAXPS(t, u, a.low) // an infinite factor would turn a score of 0 into NaN
	a.constant(.5, t)
	VMULPS(t, a.cap, a.cap)
}

func (a *dotShaper) dotRow(i, has int) {
	away := a.away
	if i == 1 {
		away = a.odd[1]
	}
	capped, biased := has&shapedCap != 0, has&(shapedBias|shapedHalves) != 0
	if capped {
		a.capRow(i)
	}
	for v, w := range a.work {
		var bias Op = a.part(Mem{Base: a.bias}, v)
		if has&shapedHalves != 0 {
			bias = w.u
			VPMOVZXWD(Mem{Base: a.bias, Disp: v * a.vectorBytes / 2}, w.u)
			VPSLLD(Imm(16), w.u, w.u)
		}
		score := a.score(i, v)
		switch {
		case capped && biased:
			VADDPS(bias, w.z, w.z)
		case capped:
		case biased:
			VMOVUPS(bias, w.z)
			VFMADD231PS(score, a.scale, w.z)
		default:
			VMULPS(score, a.scale, w.z)
		}
		if has&shapedLanes != 0 {
			a.distance(w, away[v])
		}
		VMOVUPS(w.z, score)
	}
	if biased {
		ADDQ(a.frame.Offset(frameBias), a.bias)
	}
}

// capRow sets z to the capped scores of row i, 0 or 1, of the current two rows. It stores the
// derivatives in softcapGrad.
func (a *dotShaper) capRow(i int) {
	const signed = 0xf2 // z | score &^ abs
	each := a.each
	each(func(v int, w adjustment) { VANDPS(a.score(i, v), a.abs, w.u) })
	each(func(_ int, w adjustment) { VMULPS(a.low, w.u, w.u) })
	each(func(_ int, w adjustment) { a.exp2(w.u, w.p, w.q) })
	each(func(_ int, w adjustment) { VADDPS(a.exp.c[0], w.u, w.q) })
	each(func(_ int, w adjustment) { VDIVPS(w.q, a.one, w.p) })
	each(func(_ int, w adjustment) { VSUBPS(w.u, a.exp.c[0], w.q) })
	each(func(_ int, w adjustment) { VMULPS(w.p, w.q, w.z) })
	each(func(_ int, w adjustment) { VMULPS(a.cap, w.z, w.z) })
	each(func(v int, w adjustment) { VPTERNLOGD(Imm(signed), a.score(i, v), a.abs, w.z) })
	each(func(_ int, w adjustment) { VMULPS(w.p, w.u, w.u) })
	each(func(_ int, w adjustment) { VMULPS(w.p, w.u, w.u) })
	each(func(v int, w adjustment) {
		VMOVUPS(w.u, Mem{Base: a.masks, Disp: i*a.rowBytes + v*a.vectorBytes})
	})
}

func (a *dotShaper) nextDots(has int) {
	if has&shapedCap != 0 {
		ADDQ(U32(uint32(2*a.rowBytes)), a.masks)
	}
}
