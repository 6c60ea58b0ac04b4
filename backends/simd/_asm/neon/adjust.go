package main

import (
	"fmt"
	"math"
)

// The approximation of tanh(4z) is z p(z²) / q(z²), the fit of ../features.go. The code multiplies
// the coefficients of p by the cap, which is the softcap.
var (
	tanhP = []float32{77.03678131103516, 165.09329223632812, 69.24309539794922, 6.583954334259033, 0.06924249976873398}
	tanhQ = []float32{19.25919532775879, 143.98899841308594, 127.87250518798828, 26.119110107421875}
)

const (
	tanhScale = 1. / 4
	tanhLimit = 2.375 * 2.375 // of z²: here the quotient exceeds 1 by more than its rounding errors
	capLimit  = 0x1p64        // a larger cap counts as this one: only scores above 2^52 differ
)

// Vector registers of scoreMod: four for each of two vectors of a row, the row maxima and
// positions, then the constants.
const (
	adjustZ, adjustU, adjustP, adjustQ = 0, 2, 4, 6
	adjustTop, adjustAway              = 8, 12 // the first of four vectors each
	adjustScale, adjustSlope           = 16, 17
	adjustCap, adjustLow               = 18, 19
	adjustPs, adjustQs, adjustLimit    = 20, 25, 29
	adjustOne, adjustInverse           = 30, 31
)

// An adjuster holds the arguments of scoreMod.
type adjuster struct {
	*generator
	s, step, rows, to, bias, biasStep, lanes reg
}

// A variant is the feature set of a loop of scoreMod.
type variant struct{ softcap, softcapGrad, bias, lanes bool }

// scoreMod writes the routine that modifies scores. Each set of features has its own loop, so that
// absent features cost nothing. With softcap, a loop also checks whether there is a bias.
func (g *generator) scoreMod() {
	g.routine("scoreMod", "s *float32, step, rows int, rowMax, softcapGrad *float32, scale, softcap float32, bias *float32, biasStep int, lanes *float32, slope, at float32",
		"scales scores and applies softcap, bias and ALiBi. The steps, for r < rows and",
		"i < 16:\n//",
		"  - x = scale·s[r][i]",
		"  - if softcap != 0: t = tanh(x/softcap), x = softcap·t, and softcapGrad[r][i] = 1 - t² unless",
		"    softcapGrad is nil",
		"  - if bias is not nil: x = x + bias[r][i]",
		"  - if lanes is not nil: x = x - slope·|at+r-lanes[i]|, where at+r and lanes[i] differ by less",
		"    than 2^24",
		"  - s[r][i] = x\n//",
		"The routine then raises rowMax[i] to the largest s[r][i], ignoring NaN. Rows of s and softcapGrad",
		"are step elements apart. Rows of bias are biasStep elements apart. softcap >= 0, and",
		"scale/softcap is not denormal. rows > 0.")
	a := &adjuster{
		generator: g, s: g.param("s"), step: g.stepParam("step"), rows: g.param("rows"), to: g.param("softcapGrad"),
		bias: g.param("bias"), biasStep: g.stepParam("biasStep"), lanes: g.param("lanes"),
	}
	rowMax, softcap := g.param("rowMax"), g.param("softcap")
	g.loadRow(rowMax, 0, adjustTop)
	g.op("LSLW $1, %v", softcap) // shifts the sign out: -0 is 0
	g.op("CBZW %v, linear", softcap)
	g.op("CBZ %v, capped", a.to)
	a.exponentials()
	a.softcapConstants()
	a.chooseTerms("uncapped", variant{softcap: true, softcapGrad: true})
	g.label("capped")
	a.softcapConstants()
	a.chooseTerms("cappedOnly", variant{softcap: true})
	g.label("linear")
	g.broadcast("scale", adjustScale)
	a.chooseTerms("plain", variant{})
	g.label("end")
	g.storeRow(adjustTop, rowMax, 0)
	g.done()
}

// scaleOfTanh loads the cap into limit and sets scale so that z, the argument of the fit of
// tanh(4z), is scale·score. t is scratch and ends as the largest finite number.
func (a *adjuster) scaleOfTanh(scale, limit, t int) {
	a.broadcast("scale", scale)
	a.broadcast("softcap", limit)
	a.constant(capLimit, t)
	a.v("fmin v%d.4s, v%d.4s, v%d.4s", limit, limit, t)
	a.v("fdiv v%d.4s, v%d.4s, v%d.4s", scale, scale, limit)
	a.constant(tanhScale, t)
	a.v("fmul v%d.4s, v%d.4s, v%d.4s", scale, scale, t)
	a.constant(math.MaxFloat32, t)
	a.v("fmin v%d.4s, v%d.4s, v%d.4s", scale, scale, t) // an infinite scale would turn a score of 0 into NaN
}

func (a *adjuster) softcapConstants() {
	const t = adjustZ
	a.scaleOfTanh(adjustScale, adjustCap, t)
	a.v("fneg v%d.4s, v%d.4s", adjustLow, adjustCap)
	a.constant(1, adjustOne)
	a.v("fdiv v%d.4s, v%d.4s, v%d.4s", adjustInverse, adjustOne, adjustCap)
	a.v("fmin v%d.4s, v%d.4s, v%d.4s", adjustInverse, adjustInverse, t) // t is the largest finite number
	for i, c := range tanhP {
		a.constant(c, adjustPs+i)
		a.v("fmul v%d.4s, v%d.4s, v%d.4s", adjustPs+i, adjustPs+i, adjustCap)
	}
	for i, c := range tanhQ {
		a.constant(c, adjustQs+i)
	}
	a.constant(tanhLimit, adjustLimit)
}

// exponentials sets softcapGrad to exp(-2|x|), where x is the argument of tanh. A separate loop
// over the rows does this before the loop that computes tanh, because the constants of exp2 and of
// tanh use the same registers.
func (a *adjuster) exponentials() {
	const x, scratch, others, power, limit, numbers = 0, 2, adjustAway, 6, 7, 16
	at, to, rows := a.temp(), a.temp(), a.temp()
	a.scaleOfTanh(power, limit, x)
	a.constant(-2*math.Log2E/tanhScale, x)
	a.v("fmul v%d.4s, v%d.4s, v%d.4s", power, power, x)
	a.constant(-math.MaxFloat32, x)
	a.v("fmax v%d.4s, v%d.4s, v%d.4s", power, power, x)
	e := a.exp2Constants(numbers)
	a.op("MOVD %v, %v", a.s, at)
	a.op("MOVD %v, %v", a.to, to)
	a.op("MOVD %v, %v", a.rows, rows)
	a.label("exponential")
	for pair := 0; pair < vectors; pair += 2 {
		a.v2("ldp", x, at, 16*pair)
		for i := range 2 {
			a.v("fabs v%d.4s, v%d.4s", x+i, x+i)
			a.v("fmul v%d.4s, v%d.4s, v%d.4s", x+i, x+i, power)
		}
		a.exp2(e, []int{x, x + 1}, []int{scratch, others})
		a.v2("stp", x, to, 16*pair)
	}
	a.op("ADD %v, %v", a.step, at)
	a.op("ADD %v, %v", a.step, to)
	a.count(rows, "exponential")
	a.used -= 3
}

func (a *adjuster) chooseTerms(label string, v variant) {
	a.op("CBZ %v, %sLevel", a.lanes, label)
	a.lanesConstants()
	v.lanes = true
	a.chooseBias(label+"Sloped", v)
	a.label(label + "Level")
	v.lanes = false
	a.chooseBias(label, v)
}

func (a *adjuster) chooseBias(label string, v variant) {
	if v.softcap {
		v.bias = true
		a.loop(label+"Rows", v)
		return
	}
	a.op("CBZ %v, %sUnbiased", a.bias, label)
	v.bias = true
	a.loop(label+"Rows", v)
	a.label(label + "Unbiased")
	v.bias = false
	a.loop(label+"UnbiasedRows", v)
}

func (a *adjuster) lanesConstants() {
	a.broadcast("slope", adjustSlope)
	a.broadcast("at", adjustZ)
	a.constant(1, adjustOne)
	a.loadRow(a.lanes, 0, adjustAway)
	each(func(q int) { a.v("fsub v%d.4s, v%d.4s, v%d.4s", adjustAway+q, adjustZ, adjustAway+q) })
}

func (a *adjuster) loop(label string, has variant) {
	a.label(label)
	for pair := 0; pair < vectors; pair += 2 {
		a.v2("ldp", adjustZ, a.s, 16*pair)
		if has.softcap {
			a.tanh()
		}
		if has.softcapGrad {
			a.storeUncap(pair)
		}
		a.terms(fmt.Sprintf("%sUnbiased%d", label, pair), pair, has)
		a.v2("stp", adjustZ, a.s, 16*pair)
		for i := range 2 {
			rowMax := adjustTop + pair + i
			a.v("fmaxnm v%d.4s, v%d.4s, v%d.4s", rowMax, rowMax, adjustZ+i) // a NaN score leaves the maximum as it is
		}
	}
	a.op("ADD %v, %v", a.step, a.s)
	if has.softcapGrad {
		a.op("ADD %v, %v", a.step, a.to)
	}
	if has.softcap {
		a.op("CBZ %v, %sUnbiased", a.bias, label)
	}
	if has.bias {
		a.op("ADD %v, %v", a.biasStep, a.bias)
	}
	if has.softcap {
		a.label(label + "Unbiased")
	}
	a.count(a.rows, label)
	a.op("B end")
}

// terms adds the bias and the ALiBi term to two vectors of scores. Without softcap, the code first
// scales the vectors. With softcap, a nil bias leads to the label unbiased.
func (a *adjuster) terms(unbiased string, pair int, has variant) {
	if has.softcap {
		a.op("CBZ %v, %s", a.bias, unbiased)
	}
	if has.bias {
		a.v2("ldp", adjustU, a.bias, 16*pair)
	}
	if has.softcap {
		a.both("fadd v%d.4s, v%d.4s, v%d.4s", adjustZ, adjustZ, adjustU)
		a.label(unbiased)
	}
	for i := range 2 {
		z, u := adjustZ+i, adjustU+i
		switch {
		case has.softcap:
		case has.bias:
			a.v("fmla v%d.4s, v%d.4s, v%d.4s", u, z, adjustScale)
			a.v("mov v%d.16b, v%d.16b", z, u)
		default:
			a.v("fmul v%d.4s, v%d.4s, v%d.4s", z, z, adjustScale)
		}
		if has.lanes {
			away := adjustAway + pair + i
			a.v("fabs v%d.4s, v%d.4s", u, away)
			a.v("fmls v%d.4s, v%d.4s, v%d.4s", z, u, adjustSlope)
			a.v("fadd v%d.4s, v%d.4s, v%d.4s", away, away, adjustOne)
		}
	}
}

// both writes an instruction for each of two vectors. A register below adjustTop stands for two
// registers, one for each vector. Other registers are the same in both instructions.
func (a *adjuster) both(format string, registers ...int) {
	for i := range 2 {
		var list []any
		for _, v := range registers {
			if v < adjustTop {
				v += i
			}
			list = append(list, v)
		}
		a.v(format, list...)
	}
}

// tanh sets two vectors of scores to cap·tanh(4z), with z = scale·score. Above the limit of z² both
// polynomials stay constant. The quotient then grows with z, and the code clamps the quotient to
// [-cap, cap].
func (a *adjuster) tanh() {
	const z, u, p, q = adjustZ, adjustU, adjustP, adjustQ
	a.both("fmul v%d.4s, v%d.4s, v%d.4s", z, z, adjustScale)
	a.both("fmul v%d.4s, v%d.4s, v%d.4s", u, z, z)
	a.both("fmin v%d.4s, v%d.4s, v%d.4s", u, u, adjustLimit)
	from, into := p, q // a multiply-add begins with a copy of a coefficient, so two registers alternate
	a.both("mov v%d.16b, v%d.16b", from, adjustPs+4)
	for i := 3; i >= 0; i-- {
		a.both("mov v%d.16b, v%d.16b", into, adjustPs+i)
		a.both("fmla v%d.4s, v%d.4s, v%d.4s", into, from, u)
		from, into = into, from
	}
	a.both("fmul v%d.4s, v%d.4s, v%d.4s", z, z, from)
	a.both("fadd v%d.4s, v%d.4s, v%d.4s", from, u, adjustQs+3)
	for i := 2; i >= 0; i-- {
		a.both("mov v%d.16b, v%d.16b", into, adjustQs+i)
		a.both("fmla v%d.4s, v%d.4s, v%d.4s", into, from, u)
		from, into = into, from
	}
	a.both("fdiv v%d.4s, v%d.4s, v%d.4s", z, z, from)
	a.both("fmin v%d.4s, v%d.4s, v%d.4s", z, z, adjustCap) // fmin returns NaN for NaN
	a.both("fmax v%d.4s, v%d.4s, v%d.4s", z, z, adjustLow)
}

// storeUncap stores the derivative 1-t² of softcap for two vectors. Here t = tanh(x), and x is the
// scaled score divided by the cap. storeUncap computes 1-t² as exp(-2|x|)·(1+|t|)², because the
// difference 1-t² loses its digits near the cap.
func (a *adjuster) storeUncap(pair int) {
	const z, u, p, q = adjustZ, adjustU, adjustP, adjustQ
	a.v2("ldp", u, a.to, 16*pair)
	a.both("fabs v%d.4s, v%d.4s", p, z)
	a.both("mov v%d.16b, v%d.16b", q, adjustOne)
	a.both("fmla v%d.4s, v%d.4s, v%d.4s", q, p, adjustInverse)
	a.both("fmul v%d.4s, v%d.4s, v%d.4s", u, u, q)
	a.both("fmul v%d.4s, v%d.4s, v%d.4s", u, u, q)
	a.v2("stp", u, a.to, 16*pair)
}
