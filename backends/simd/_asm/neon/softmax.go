package main

import "math"

// An exponential holds the registers of the constants of exp2: the coefficients c[0] to c[5], the
// lowest argument and the rounding constant.
type exponential struct {
	c             [6]int
	low, rounding int
}

// exp2Numbers are the constants of exp2. The polynomial is a minimax fit of degree 5 to 2^f on
// [-1/2, 1/2] with c0 = 1, relative error 1e-7.
var exp2Numbers = [8]float32{1, 0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957, 0.001326472731307149, -127, 0x1.8p23 + 127}

// exp2Constants loads the constants of exp2 into the vectors first to first+7.
func (g *generator) exp2Constants(first int) exponential {
	for i, x := range exp2Numbers {
		g.constant(x, first+i)
	}
	return exp2At(first)
}

// exp2At returns the exponential whose constants are in the vectors first to first+7.
func exp2At(first int) exponential {
	return exponential{[6]int{first, first + 1, first + 2, first + 3, first + 4, first + 5}, first + 6, first + 7}
}

func (g *generator) constant(x float32, v int) {
	if bits := math.Float32bits(x); bits == 0 {
		g.clear(v)
	} else {
		g.word(bits, v)
	}
}

// exp2 sets vectors to 2^x for x <= 128. It splits x into a whole number n and a fraction f,
// computes 2^f by a polynomial, and multiplies by 2^n. -Inf gives 0, and NaN stays NaN. Each vector
// needs four adjacent scratch vectors.
//
// The last place of the rounding constant is 1. The sum of x and this constant is therefore rounded
// to whole numbers, and its low bits are n + 127. Shifted left, these bits are the float32 2^n: 0
// for n = -127, infinity for n = 128. The multiplication by 2^n keeps a NaN. An integer addition of
// n to the exponent would lose the NaN.
//
// A multiply-add overwrites its addend, so each term that starts from a coefficient costs a move.
// The polynomial is split into three sums of two terms, which saves moves.
func (g *generator) exp2(e exponential, x, scratch []int) {
	const n, low, high, square = 0, 1, 2, 3
	do := func(format string, registers func(x, s int) []any) {
		for i := range x {
			g.v(format, registers(x[i], scratch[i])...)
		}
	}
	do("fmax v%d.4s, v%d.4s, v%d.4s", func(x, _ int) []any { return []any{x, x, e.low} }) // fmax returns NaN for NaN
	do("fadd v%d.4s, v%d.4s, v%d.4s", func(x, s int) []any { return []any{s + n, x, e.rounding} })
	do("fsub v%d.4s, v%d.4s, v%d.4s", func(_, s int) []any { return []any{s + low, s + n, e.rounding} })
	do("mov v%d.16b, v%d.16b", func(_, s int) []any { return []any{s + high, e.c[4]} })
	do("fsub v%d.4s, v%d.4s, v%d.4s", func(x, s int) []any { return []any{x, x, s + low} })
	do("mov v%d.16b, v%d.16b", func(_, s int) []any { return []any{s + low, e.c[2]} })
	do("fmul v%d.4s, v%d.4s, v%d.4s", func(x, s int) []any { return []any{s + square, x, x} })
	do("fmla v%d.4s, v%d.4s, v%d.4s", func(x, s int) []any { return []any{s + high, x, e.c[5]} })
	do("fmla v%d.4s, v%d.4s, v%d.4s", func(x, s int) []any { return []any{s + low, x, e.c[3]} })
	do("shl v%d.4s, v%d.4s, #23", func(_, s int) []any { return []any{s + n, s + n} })
	do("fmla v%d.4s, v%d.4s, v%d.4s", func(_, s int) []any { return []any{s + low, s + high, s + square} })
	do("mov v%d.16b, v%d.16b", func(_, s int) []any { return []any{s + high, e.c[0]} })
	do("fmla v%d.4s, v%d.4s, v%d.4s", func(x, s int) []any { return []any{s + high, x, e.c[1]} })
	do("fmla v%d.4s, v%d.4s, v%d.4s", func(_, s int) []any { return []any{s + high, s + low, s + square} })
	do("fmul v%d.4s, v%d.4s, v%d.4s", func(x, s int) []any { return []any{x, s + high, s + n} })
}

func (g *generator) maskScores() {
	g.routine("maskScores", "s *float32, masks *uint32, keys int, rowMax *float32",
		"sets s[j][i] = -Inf where bit i of masks[j] is clear. It then raises rowMax[i] to the largest",
		"s[j][i], ignoring NaN. s is [keys][16], masks is [keys]. keys > 0.")
	s, masks, keys, rowMax := g.param("s"), g.param("masks"), g.param("keys"), g.param("rowMax")
	const x, most, bits, lowest, word, seen = 0, 4, 8, 12, 13, 14
	g.laneBits(bits)
	g.constant(float32(math.Inf(-1)), lowest)
	g.loadRow(rowMax, 0, most)
	g.label("key")
	g.v("ld1r {v%d.4s}, [x%d]", word, masks)
	g.loadRow(s, 0, x)
	g.op("ADD $4, %v", masks)
	each(func(q int) { g.v("cmtst v%d.4s, v%d.4s, v%d.4s", seen+q, word, bits+q) })
	each(func(q int) { g.v("bif v%d.16b, v%d.16b, v%d.16b", x+q, lowest, seen+q) })
	each(func(q int) { g.v("fmaxnm v%d.4s, v%d.4s, v%d.4s", most+q, most+q, x+q) })
	g.storeRow(x, s, 0)
	g.op("ADD $%d, %v", rowBytes, s)
	g.count(keys, "key")
	g.storeRow(most, rowMax, 0)
	g.done()
}

// Vector registers of expScores, which handles two vectors of scores at a time: scores and scratch
// vectors, then sums and constants.
const (
	weightX, weightScratch     = 0, 2
	weightShift, weightSum     = 10, 14
	weightScale, weightNumbers = 18, 19
)

// expScores writes the routine that replaces S by P = 2^(scale·(S - max)) and updates the running
// maximum and sum.
func (g *generator) expScores() {
	g.routine("expScores", "s *float32, keys int, m, rowMax, l, alpha *float32, scale float32",
		"updates the online softmax with the scores s of a tile. m[i] is the old maximum of",
		"the scores of query i, rowMax[i] is the new maximum, and l[i] is the sum of the weights. The",
		"steps, for j < keys and i < 16:\n//",
		"  - alpha[i] = 2^(scale·(m[i] - rowMax[i]))",
		"  - s[j][i] = 2^(scale·(s[j][i] - rowMax[i])), the weights",
		"  - l[i] = alpha[i]·l[i] + Σ over j of s[j][i]",
		"  - m[i] = rowMax[i]\n//",
		"In the exponents, a rowMax[i] of -Inf counts as the lowest finite number. s is [keys][16].",
		"keys > 0.")
	s, keys, m, rowMax, l, alpha := g.param("s"), g.param("keys"), g.param("m"), g.param("rowMax"), g.param("l"), g.param("alpha")
	e := g.exp2Constants(weightNumbers)
	g.broadcast("scale", weightScale)
	g.beginWeights(e, m, rowMax, l, alpha)
	// The sum over each half of the keys starts from zero: smaller sums have smaller rounding
	// errors.
	left := g.temp()
	g.op("LSR $1, %v, %v", keys, left)
	g.op("SUB %v, %v", left, keys)
	g.label("part")
	g.clear(weightSum, weightSum+1, weightSum+2, weightSum+3)
	g.label("key")
	for pair := 0; pair < vectors; pair += 2 {
		g.v2("ldp", weightX, s, 16*pair)
		g.weigh(e, pair)
		g.v2("stp", weightX, s, 16*pair)
		for i := range 2 {
			g.v("fadd v%d.4s, v%d.4s, v%d.4s", weightSum+pair+i, weightSum+pair+i, weightX+i)
		}
	}
	g.op("ADD $%d, %v", rowBytes, s)
	g.count(keys, "key")
	g.loadRow(l, 0, weightX)
	each(func(q int) { g.v("fadd v%d.4s, v%d.4s, v%d.4s", weightX+q, weightX+q, weightSum+q) })
	g.storeRow(weightX, l, 0)
	g.op("MOVD %v, %v", left, keys)
	g.op("MOVD $0, %v", left)
	g.op("CBNZ %v, part", keys)
	g.done()
}

// weigh replaces two vectors of scores x by the weights 2^(scale·(x - shift)). It subtracts shift
// before it multiplies by scale, so that large scores lose no digits.
func (g *generator) weigh(e exponential, pair int) {
	for i := range 2 {
		g.v("fsub v%d.4s, v%d.4s, v%d.4s", weightX+i, weightX+i, weightShift+pair+i)
	}
	for i := range 2 {
		g.v("fmul v%d.4s, v%d.4s, v%d.4s", weightX+i, weightX+i, weightScale)
	}
	g.exp2(e, []int{weightX, weightX + 1}, []int{weightScratch, weightScratch + 4})
}

// beginWeights sets the shift to the larger of rowMax and the lowest finite number. It sets alpha
// to 2^(scale·(m - shift)), with the old m, and multiplies l by alpha. It then sets m to rowMax,
// which may be -Inf.
func (g *generator) beginWeights(e exponential, m, rowMax, l, alpha reg) {
	g.loadRow(rowMax, 0, weightShift)
	lowest := weightSum
	g.constant(-math.MaxFloat32, lowest)
	for pair := 0; pair < vectors; pair += 2 {
		g.v2("ldp", weightX, m, 16*pair)
		g.v2("stp", weightShift+pair, m, 16*pair)
		for i := range 2 {
			g.v("fmax v%d.4s, v%d.4s, v%d.4s", weightShift+pair+i, weightShift+pair+i, lowest)
		}
		g.weigh(e, pair)
		g.v2("stp", weightX, alpha, 16*pair)
		g.v2("ldp", weightScratch, l, 16*pair)
		for i := range 2 {
			g.v("fmul v%d.4s, v%d.4s, v%d.4s", weightX+i, weightX+i, weightScratch+i)
		}
		g.v2("stp", weightX, l, 16*pair)
	}
}

// finalizeLSE writes the routine that computes a tile's LSE, and the factors 1/l by which the
// kernel multiplies O. A comment in ../softmax.go explains the logarithm.
func (g *generator) finalizeLSE() {
	g.routine("finalizeLSE", "lse, by, m, l *float32, scale float32",
		"ends the online softmax of 16 queries. From the maximum m[i] and the sum l[i] of",
		"query i it computes by[i] = 1/l[i] and lse[i] = scale·m[i] + ln(l[i]). Where l[i] is 0, it sets",
		"by[i] = 0 and lse[i] = -Inf instead. Every other l[i] must be a positive normal number or NaN.",
		"All arrays are [16].")
	lse, by, m, l := g.param("lse"), g.param("by"), g.param("m"), g.param("l")
	n := g.temp()
	fit := []float32{0.3333333134651184, -0.25000306963920593, 0.20001044869422913, -0.166412815451622,
		0.14214496314525604, -0.12998183071613312, 0.12622319161891937, -0.0790274366736412}
	const x, e, f, square, p, c, scale, zero, one, half, high, low, lowest, coefficients = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16
	g.broadcast("scale", scale)
	g.constant(1, one)
	g.constant(0.5, half)
	g.constant(0.693115234375, high)
	g.constant(3.194618329871446e-05, low)
	g.constant(float32(math.Inf(-1)), lowest)
	for i, c := range fit {
		g.constant(c, coefficients+i)
	}
	const root = coefficients + 8
	g.constant(math.Sqrt2/2, root)
	g.op("MOVD $%d, %v", vectors, n)
	g.label("vector")
	g.v("ldr q%d, [x%d], #16", x, l)
	g.v("sub v%d.4s, v%d.4s, v%d.4s", e, x, root)
	g.v("sshr v%d.4s, v%d.4s, #23", e, e)
	g.v("shl v%d.4s, v%d.4s, #23", f, e)
	g.v("sub v%d.4s, v%d.4s, v%d.4s", f, x, f)
	g.v("fsub v%d.4s, v%d.4s, v%d.4s", f, f, one)
	g.v("cmeq v%d.4s, v%d.4s, #0", zero, x)
	g.v("fdiv v%d.4s, v%d.4s, v%d.4s", c, one, x)
	g.v("bic v%d.16b, v%d.16b, v%d.16b", c, c, zero)
	g.v("str q%d, [x%d], #16", c, by)
	g.v("scvtf v%d.4s, v%d.4s", e, e)
	g.v("fmul v%d.4s, v%d.4s, v%d.4s", square, f, f)
	g.v("mov v%d.16b, v%d.16b", p, coefficients+len(fit)-1)
	for i := len(fit) - 2; i >= 0; i-- {
		g.v("mov v%d.16b, v%d.16b", c, coefficients+i)
		g.v("fmla v%d.4s, v%d.4s, v%d.4s", c, p, f)
		g.v("mov v%d.16b, v%d.16b", p, c)
	}
	g.v("fmul v%d.4s, v%d.4s, v%d.4s", p, p, f)
	g.v("fmul v%d.4s, v%d.4s, v%d.4s", p, p, square)
	g.v("fmla v%d.4s, v%d.4s, v%d.4s", f, e, high)
	g.v("fmla v%d.4s, v%d.4s, v%d.4s", p, e, low)
	g.v("fmls v%d.4s, v%d.4s, v%d.4s", p, square, half)
	g.v("fadd v%d.4s, v%d.4s, v%d.4s", p, f, p)
	g.v("ldr q%d, [x%d], #16", c, m)
	g.v("fmla v%d.4s, v%d.4s, v%d.4s", p, c, scale)
	g.v("fsub v%d.4s, v%d.4s, v%d.4s", x, x, x)
	g.v("fadd v%d.4s, v%d.4s, v%d.4s", p, x, p) // adds 0, or NaN if l is NaN
	g.v("bit v%d.16b, v%d.16b, v%d.16b", p, lowest, zero)
	g.v("str q%d, [x%d], #16", p, lse)
	g.count(n, "vector")
	g.done()
}
