package main

import "math"

// An activation is a function act. value replaces x in the vector elementX by act(x), and slope
// replaces x by elementY·act'(x). A nil value stands for the identity. value and slope may use the
// vectors between elementX and elementY. constants loads the constants of value and slope into the
// vectors after elementY.
type activation struct {
	name      string
	given     string // not "": the routine has the numbers of act as a parameter
	constants func()
	value     func()
	slope     func()
}

func (a activation) parameter() string {
	if a.given == "" {
		return ""
	}
	return ", numbers *float32"
}

// Vectors of finish and slope routines.
const (
	elementX, elementZ, elementQ, elementE = 0, 1, 2, 3
	elementScratch                         = 4  // the first of four
	elementY                               = 8  // an addend or factor
	numbers                                = 9  // the first constant of an activation
	powers                                 = 24 // the first constant of exp2
)

// eachElements writes loops over n elements: four at a time, then one at a time. body writes the
// code for four elements or one. name is the letter of registers of this size, and label is a prefix
// for labels. at holds the byte offset of the current elements.
func (g *generator) eachElements(n, at, left reg, body func(name, label string)) {
	g.op("MOVD $0, %v", at)
	g.op("LSR $2, %v, %v", n, left)
	g.op("CBZ %v, vectordone", left)
	g.label("vector")
	body("q", "vector")
	g.op("ADD $16, %v", at)
	g.count(left, "vector")
	g.label("vectordone")
	g.op("ANDS $3, %v, %v", n, left)
	g.op("BEQ onedone")
	g.label("one")
	body("s", "one")
	g.op("ADD $4, %v", at)
	g.count(left, "one")
	g.label("onedone")
}

func (g *generator) finishRows(a activation) {
	g.routine("finish"+a.name, "c *float32, cStep int, sums *float32, sumStep int, bias, before *float32, beforeStep int, residual *float32, residualStep, rows, cols, add int"+a.parameter(),
		"sets c to act(sums + bias) + residual, or adds these values to c. act is the",
		"activation in the routine's name. With None, act(x) is x. For r < rows and i < cols:\n//",
		"  - x = sums[r][i] + bias[i]",
		"  - before[r][i] = x",
		"  - y = act(x) + residual[r][i]",
		"  - c[r][i] = y, or the old c[r][i] + y if add != 0\n//",
		"bias, before and residual may be nil. For a nil array, the routine omits the addition or the",
		"store. cStep, sumStep, beforeStep and residualStep are row strides in elements. rows > 0."+a.given)
	c, cStep, sums, sumStep := g.param("c"), g.stepParam("cStep"), g.param("sums"), g.stepParam("sumStep")
	bias, before, beforeStep := g.param("bias"), g.param("before"), g.stepParam("beforeStep")
	residual, residualStep := g.param("residual"), g.stepParam("residualStep")
	rows, cols, add, at, left := g.param("rows"), g.param("cols"), g.param("add"), g.temp(), g.temp()
	if a.constants != nil {
		a.constants()
	}
	given := func(r reg, label string, then func()) {
		g.op("CBZ %v, %s", r, label)
		then()
		g.label(label)
	}
	g.label("row")
	g.eachElements(cols, at, left, func(name, label string) {
		move := func(op string, v int, from reg) { g.v("%s %s%d, [x%d, x%d]", op, name, v, from, at) }
		sum := func(from reg) {
			move("ldr", elementY, from)
			g.v("fadd v%d.4s, v%d.4s, v%d.4s", elementX, elementX, elementY)
		}
		move("ldr", elementX, sums)
		given(bias, label+"noBias", func() { sum(bias) })
		given(before, label+"noBefore", func() { move("str", elementX, before) })
		if a.value != nil {
			a.value()
		}
		given(residual, label+"noResidual", func() { sum(residual) })
		given(add, label+"set", func() { sum(c) })
		move("str", elementX, c)
	})
	g.op("ADD %v, %v", cStep, c)
	g.op("ADD %v, %v", sumStep, sums)
	given(before, "beforeDone", func() { g.op("ADD %v, %v", beforeStep, before) })
	given(residual, "residualDone", func() { g.op("ADD %v, %v", residualStep, residual) })
	g.count(rows, "row")
	g.done()
}

func (g *generator) slopes(a activation) {
	g.routine("slope"+a.name, "dx, x, dy *float32, n int"+a.parameter(),
		"sets dx[i] = dy[i]·act'(x[i]) for i < n. act' is the derivative of the activation in the routine's name."+a.given)
	dx, x, dy, n, at, left := g.param("dx"), g.param("x"), g.param("dy"), g.param("n"), g.temp(), g.temp()
	a.constants()
	g.eachElements(n, at, left, func(name, _ string) {
		g.v("ldr %s%d, [x%d, x%d]", name, elementX, x, at)
		g.v("ldr %s%d, [x%d, x%d]", name, elementY, dy, at)
		a.slope()
		g.v("str %s%d, [x%d, x%d]", name, elementX, dx, at)
	})
	g.done()
}

func (g *generator) do(op string, d, n, m int) { g.v("%s v%d.4s, v%d.4s, v%d.4s", op, d, n, m) }

func (g *generator) copyOf(d, n int) { g.v("mov v%d.16b, v%d.16b", d, n) }

// constants loads a list of constants into the vectors from numbers on.
func (g *generator) constants(list ...float64) {
	for i, x := range list {
		g.constant(float32(x), numbers+i)
	}
}

func (g *generator) constantsOfReLU() { g.constants(0) }

// relu writes max(x, 0). NaN stays NaN.
func (g *generator) relu() { g.do("fmax", elementX, elementX, numbers) }

// reluSlope sets x to 0 where x <= 0, even if dy is NaN or infinite. Elsewhere, including at a NaN
// x, it sets x to dy.
func (g *generator) reluSlope() {
	g.v("fcmle v%d.4s, v%d.4s, #0.0", elementX, elementX)
	g.v("bic v%d.16b, v%d.16b, v%d.16b", elementX, elementY, elementX)
}

func (g *generator) powerOf(e exponential, x int) { g.exp2(e, []int{x}, []int{elementScratch}) }

// GELU is x Φ(x), with the fit of ../matmul_finish.go: Φ(-z) = 2^(-z² log2(e)/2) t P(t), z >= 0.
const (
	normalSlope = 0.27
	normalEnd   = 13.2

	normalZero, normalOne, normalLast, normalBy, normalHalf, normalDensity, normalFirst = numbers, numbers + 1, numbers + 2, numbers + 3, numbers + 4, numbers + 5, numbers + 6
)

var normalFit = []float64{0.10771922022104263, 0.107565738260746, 0.10165729373693466, 0.07261548936367035, 0.10656528919935226,
	-0.06747189164161682, 0.16833119094371796, -0.1258091926574707, 0.02882687933743}

func (g *generator) constantsOfGELU() {
	g.constants(append([]float64{0, 1, normalEnd, normalSlope, -math.Log2E / 2, 1 / math.Sqrt(2*math.Pi)}, normalFit...)...)
	g.exp2Constants(powers)
}

// normalTail sets z = min(|x|, normalEnd), e = 2^(-z² log2(e)/2) and q = Φ(-z). NaN stays NaN.
func (g *generator) normalTail() {
	const x, z, q, e = elementX, elementZ, elementQ, elementE
	g.v("fabs v%d.4s, v%d.4s", z, x)
	g.do("fmin", z, z, normalLast)
	g.copyOf(q, normalOne)
	g.do("fmla", q, z, normalBy)
	g.do("fdiv", q, normalOne, q)
	p, next := normalFirst+len(normalFit)-1, elementScratch
	for i := len(normalFit) - 2; i >= 0; i-- {
		g.copyOf(next, normalFirst+i)
		g.do("fmla", next, p, q)
		p, next = next, elementScratch+i%2
	}
	g.do("fmul", q, q, p)
	g.do("fmul", e, z, z)
	g.do("fmul", e, e, normalHalf)
	g.powerOf(exp2At(powers), e)
	g.do("fmul", q, q, e)
}

// gelu writes max(x, 0) - z Φ(-z). normalTail bounds z, so no infinity is multiplied by 0.
func (g *generator) gelu() {
	g.normalTail()
	g.do("fmax", elementX, elementX, normalZero)
	g.do("fmls", elementX, elementZ, elementQ)
}

// geluSlope writes (Φ(x) + x φ(x)) dy, where φ is the standard normal density. The first factor is
// Φ(-z) - z φ(z) for x < 0, else 1 - Φ(-z) + z φ(z).
func (g *generator) geluSlope() {
	const x, z, q, e, high = elementX, elementZ, elementQ, elementE, elementScratch
	g.normalTail()
	g.do("fsub", high, normalOne, q)
	g.do("fmul", e, e, normalDensity)
	g.do("fmls", q, e, z)
	g.do("fmla", high, e, z)
	g.v("sshr v%d.4s, v%d.4s, #31", x, x)
	g.v("bsl v%d.16b, v%d.16b, v%d.16b", x, q, high)
	g.do("fmul", x, x, elementY)
}

// A logistic activation is x/(1 + 2^y) with y = -2 log2(e) linear (x + cubic x³): GELUTanh and SiLU. Its
// numbers are a parameter, so that both share the routines. x is at least lowest, to avoid infinity
// times 0.
const (
	logisticBy    = numbers + iota // -2 log2(e) linear
	logisticCubic                  // logisticBy·cubic
	logisticOne
	logisticMost      // largest y of a value
	logisticSlopeMost // largest y of a slope
	logisticLowest    // least x
	logisticHighest   // greatest x of a slope
	logisticLinear    // 2 linear
	logisticCubicBy   // 6 linear cubic
	logisticEnd
)

func (g *generator) constantsOfLogistic() {
	from := g.param("numbers")
	for i := numbers; i < logisticEnd; i++ {
		g.v("ldr q%d, [x%d, #%d]", i, from, 64*(i-numbers))
	}
	g.exp2Constants(powers)
}

const elementSquare = elementZ

// logisticParts sets e = 2^min(y, most), q = 1/(1 + e) and elementSquare = x².
func (g *generator) logisticParts(most int) {
	const x, q, e, square = elementX, elementQ, elementE, elementSquare
	g.do("fmul", square, x, x)
	g.copyOf(e, logisticBy)
	g.do("fmla", e, square, logisticCubic)
	g.do("fmul", e, e, x)
	g.do("fmin", e, e, most)
	g.powerOf(exp2At(powers), e)
	g.do("fadd", q, e, logisticOne)
	g.do("fdiv", q, logisticOne, q)
}

func (g *generator) logistic() {
	g.do("fmax", elementX, elementX, logisticLowest)
	g.logisticParts(logisticMost)
	g.do("fmul", elementX, elementX, elementQ)
}

// logisticSlope writes (q + x e q² u) dy, where u = 2 linear (1 + 3 cubic x²).
func (g *generator) logisticSlope() {
	const x, q, e, u = elementX, elementQ, elementE, elementScratch
	g.do("fmax", x, x, logisticLowest)
	g.do("fmin", x, x, logisticHighest)
	g.logisticParts(logisticSlopeMost)
	g.copyOf(u, logisticLinear)
	g.do("fmla", u, elementSquare, logisticCubicBy)
	g.do("fmul", u, u, x)
	g.do("fmul", u, u, q)
	g.do("fmul", e, e, q)
	g.do("fmla", q, e, u)
	g.do("fmul", x, q, elementY)
}
