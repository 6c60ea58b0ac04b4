package main

import (
	"fmt"
	"math"
)

// decodeWeights writes the routine that replaces S by P = 2^(scale·(S - max)), updates the running
// maximum and sum, and rescales O.
func (g *generator) decodeWeights() {
	g.routine("decodeWeights", "s *float32, rows, keys int, m, l *float32, scale float32, o *float32, oStep int",
		"updates the online softmax with the scores s of a block of keys. m[r] is the",
		"maximum of the scores so far of row r, and l[r] is the sum of the weights so far. The steps for",
		"each row r:\n//", "  - top = the largest of the old m[r] and all s[r][j] with j < keys, ignoring NaN",
		"  - a = 2^(scale·(m[r] - top))", "  - s[r][j] = 2^(scale·(s[r][j] - top)) for j < keys, the weights",
		"  - l[r] = a·l[r] + Σ over j < keys of s[r][j]", "  - row r of o is multiplied by a", "  - m[r] = top\n//",
		fmt.Sprintf("In the exponents, a top of -Inf counts as the lowest finite number. Rows of s are %d elements", scoreStep),
		"apart. The caller must set s[r][j] to -Inf for j from keys up to a multiple of 16. Rows of o are", "oStep elements apart, a multiple of 16. 0 < keys <= 128, rows > 0.")
	s, rows, keys, m, l := g.param("s"), g.param("rows"), g.param("keys"), g.param("m"), g.param("l")
	o, oStep := g.param("o"), g.stepParam("oStep")
	at, n, one := g.temp(), g.temp(), g.temp()
	const top, lowest, before = 27, 28, 29 // the other vectors are weightX and so on; weightShift takes four vectors
	e := g.exp2Constants(weightNumbers)
	g.broadcast("scale", weightScale)
	g.constant(-math.MaxFloat32, lowest)
	g.op("ADD $%d, %v", lanes-1, keys)
	g.op("LSR $4, %v", keys)
	g.op("MOVW $0x%08x, %v", math.Float32bits(1), one)
	overRow := func(label string, body func()) {
		g.op("MOVD %v, %v", s, at)
		g.op("MOVD %v, %v", keys, n)
		g.label(label)
		body()
		g.op("ADD $%d, %v", rowBytes, at)
		g.count(n, label)
	}
	g.label("row")
	g.v("ld1r {v%d.4s}, [x%d]", before, m)
	each(func(q int) { g.v("mov v%d.16b, v%d.16b", weightShift+q, before) })
	overRow("top", func() {
		g.loadRow(at, 0, weightX)
		each(func(q int) { g.v("fmaxnm v%d.4s, v%d.4s, v%d.4s", weightShift+q, weightShift+q, weightX+q) }) // a NaN score leaves the maximum as it is
	})
	for q := 1; q < vectors; q++ {
		g.v("fmaxnm v%d.4s, v%d.4s, v%d.4s", weightShift, weightShift, weightShift+q)
	}
	g.v("fmaxnmv s%d, v%d.4s", top, weightShift)
	g.v("str s%d, [x%d], #4", top, m)
	g.v("dup v%d.4s, v%d.s[0]", weightShift, top)
	g.v("fmax v%d.4s, v%d.4s, v%d.4s", weightShift, weightShift, lowest)
	each(func(q int) { g.v("mov v%d.16b, v%d.16b", weightShift+q, weightShift) })
	g.clear(weightSum, weightSum+1, weightSum+2, weightSum+3)
	overRow("weight", func() {
		for pair := 0; pair < vectors; pair += 2 {
			g.v2("ldp", weightX, at, 16*pair)
			g.weigh(e, pair)
			g.v2("stp", weightX, at, 16*pair)
			for i := range 2 {
				g.v("fadd v%d.4s, v%d.4s, v%d.4s", weightSum+pair+i, weightSum+pair+i, weightX+i)
			}
		}
	})
	g.endWeights(e, before, l)
	g.rescale(o, oStep, at, n, one)
	g.op("ADD $%d, %v", scoreBytes, s)
	g.op("ADD %v, %v", oStep, o)
	g.count(rows, "row")
	g.done()
}

// endWeights sets the vector weightX to alpha, the factor that rescales l and O. It sets l to
// alpha·l plus the sum of the row's weights.
func (g *generator) endWeights(e exponential, before int, l reg) {
	g.v("mov v%d.16b, v%d.16b", weightX, before)
	g.v("mov v%d.16b, v%d.16b", weightX+1, before)
	g.weigh(e, 0)
	for q := 1; q < vectors; q++ {
		g.v("fadd v%d.4s, v%d.4s, v%d.4s", weightSum, weightSum, weightSum+q)
	}
	for range 2 {
		g.v("faddp v%d.4s, v%d.4s, v%d.4s", weightSum, weightSum, weightSum)
	}
	g.v("ldr s%d, [x%d]", weightScratch, l)
	g.v("fmul v%d.4s, v%d.4s, v%d.4s", weightScratch, weightScratch, weightX)
	g.v("fadd v%d.4s, v%d.4s, v%d.4s", weightSum, weightSum, weightScratch)
	g.v("str s%d, [x%d], #4", weightSum, l)
}

// rescale multiplies a row of O by weightX. It does nothing if the factor is 1, the usual case:
// most blocks of keys do not raise the maximum.
func (g *generator) rescale(o, oStep, at, n, one reg) {
	g.v("umov w%d, v%d.s[0]", n, weightX)
	g.op("CMPW %v, %v", one, n)
	g.op("BEQ same")
	g.op("MOVD %v, %v", o, at)
	g.op("MOVD %v, %v", oStep, n)
	g.label("rescale")
	g.loadRow(at, 0, weightScratch)
	each(func(q int) { g.v("fmul v%d.4s, v%d.4s, v%d.4s", weightScratch+q, weightScratch+q, weightX) })
	g.storeRow(weightScratch, at, 0)
	g.op("ADD $%d, %v", rowBytes, at)
	g.op("SUBS $%d, %v", rowBytes, n)
	g.op("BNE rescale")
	g.label("same")
}
