package main

import "math"

// Vector registers of the routine gradients, which handles two vectors of scores at a time: scores,
// gradients and scratch, then the constants of exp2, the bits of the lanes, and broadcast numbers.
const (
	gradX, gradD, gradScratch = 0, 2, 4 // scratch is 4 to 11
	gradNumbers, gradBits     = 12, 20
	gradLSE, gradDelta        = 24, 25
	gradWord, gradScale       = 26, 27
	gradBase2, gradHigh       = 28, 29
	gradSeen                  = 30
)

// gradients writes the routine that computes P = e^(scale S - LSE) and dS = scale P (dP - delta).
func (g *generator) gradients() {
	g.routine("gradients", "s, dp, ds *float32, dsStep int, masks *uint32, rows int, lse, delta *float32, scale float32",
		"computes weights and gradients of scores. For query row i < rows and key j < 16:\n//",
		"  - w = e^(scale·s[i][j] - lse[i]), the weight",
		"  - ds[i][j] = scale·w·(dp[i][j] - delta[i])",
		"  - s[i][j] = w\n//",
		"If bit j of masks[i] is clear, the routine sets s[i][j] and ds[i][j] to 0, even if s or dp is NaN",
		"there. s and dp are [rows][16]. Rows of ds are dsStep elements apart. rows > 0.")
	s, dp, ds, dsStep := g.param("s"), g.param("dp"), g.param("ds"), g.stepParam("dsStep")
	masks, rows, lse, delta := g.param("masks"), g.param("rows"), g.param("lse"), g.param("delta")
	e := g.gradConstants("scale")
	g.label("row")
	for _, x := range []struct {
		v  int
		at reg
	}{{gradLSE, lse}, {gradDelta, delta}, {gradWord, masks}} {
		g.v("ld1r {v%d.4s}, [x%d]", x.v, x.at)
		g.op("ADD $4, %v", x.at)
	}
	for pair := 0; pair < vectors; pair += 2 {
		g.v2("ldp", gradX, s, 16*pair)
		g.v2("ldp", gradD, dp, 16*pair)
		g.gradWeights(e)
		for i := range 2 {
			x, d := gradX+i, gradD+i
			g.v("fsub v%d.4s, v%d.4s, v%d.4s", d, d, gradDelta)
			g.v("fmul v%d.4s, v%d.4s, v%d.4s", d, d, gradScale)
			g.v("cmtst v%d.4s, v%d.4s, v%d.4s", gradSeen, gradWord, gradBits+pair+i)
			g.v("and v%d.16b, v%d.16b, v%d.16b", x, x, gradSeen)
			g.v("fmul v%d.4s, v%d.4s, v%d.4s", d, x, d)
			g.v("and v%d.16b, v%d.16b, v%d.16b", d, d, gradSeen)
		}
		g.v2("stp", gradX, s, 16*pair)
		g.v2("stp", gradD, ds, 16*pair)
	}
	g.op("ADD $%d, %v", rowBytes, s)
	g.op("ADD $%d, %v", rowBytes, dp)
	g.op("ADD %v, %v", dsStep, ds)
	g.count(rows, "row")
	g.done()
}

// gradConstants loads the constants of the gradient routines. unit names the argument by which the
// scores are multiplied.
func (g *generator) gradConstants(unit string) exponential {
	e := g.exp2Constants(gradNumbers)
	g.laneBits(gradBits)
	g.broadcast(unit, gradScale)
	g.constant(math.Log2E, gradBase2)
	g.constant(128, gradHigh)
	return e
}

// gradWeights sets two vectors of scores to e^(scale S - LSE). It limits the exponent to 128,
// because a wrong LSE may make the exponent too large for exp2.
func (g *generator) gradWeights(e exponential) {
	for i := range 2 {
		x, t := gradX+i, gradScratch+4*i
		g.v("fneg v%d.4s, v%d.4s", t, gradLSE)
		g.v("fmla v%d.4s, v%d.4s, v%d.4s", t, x, gradScale)
		g.v("fmul v%d.4s, v%d.4s, v%d.4s", x, t, gradBase2) // after the subtraction, so that large scores lose no digits
		g.v("fmin v%d.4s, v%d.4s, v%d.4s", x, x, gradHigh)  // fmin returns NaN for NaN
	}
	g.exp2(e, []int{gradX, gradX + 1}, []int{gradScratch, gradScratch + 4})
}

// A pairGradients holds the registers that gradientsOf uses in addition to the registers of
// gradients. pairBy and pairKept are scratch vectors of the exponential. Both are free again after
// the exponential is computed.
type pairGradients struct {
	*generator
	s, dp, ds, kept, softcapGrad, db, at reg
}

const pairKeep, pairBy, pairKept = 31, gradScratch + 6, gradScratch + 7

func (g *generator) gradientsOf() {
	g.routine("gradientsOf", "s, dp, ds *float32, dsStep int, masks *uint32, rows int, lse, delta *float32, unit, scale float32, kept *uint32, keep float32, softcapGrad, db *float32",
		"computes weights and gradients with dropout, softcap and bias. For query row",
		"i < rows and key j < 16:\n//",
		"  - w = e^(unit·s[i][j] - lse[i]), the weight",
		"  - z = keep if bit j of kept[i] is set, else 0. If kept is nil, z = 1.",
		"  - g = w·(z·dp[i][j] - delta[i])",
		"  - s[i][j] = w·z",
		"  - db[i][j] = g, unless db is nil",
		"  - ds[i][j] = scale·g·softcapGrad[i][j]. If softcapGrad is nil, ds[i][j] = scale·g.\n//",
		"If bit j of masks[i] is clear, the routine sets s[i][j], db[i][j] and ds[i][j] to 0, even if",
		"inputs are NaN. s, dp, softcapGrad and db are [rows][16]. Rows of ds are dsStep elements apart.",
		"rows > 0.")
	x := &pairGradients{generator: g, s: g.param("s"), dp: g.param("dp"), ds: g.param("ds")}
	dsStep, masks, rows, lse, delta := g.stepParam("dsStep"), g.param("masks"), g.param("rows"), g.param("lse"), g.param("delta")
	x.kept, x.softcapGrad, x.db = g.param("kept"), g.param("softcapGrad"), g.param("db")
	scale := g.param("scale")
	e := g.gradConstants("unit")
	g.broadcast("keep", pairKeep)
	g.label("row")
	for _, y := range []struct {
		v  int
		at reg
	}{{gradLSE, lse}, {gradDelta, delta}, {gradWord, masks}} {
		g.v("ld1r {v%d.4s}, [x%d]", y.v, y.at)
		g.op("ADD $4, %v", y.at)
	}
	for pair := 0; pair < vectors; pair += 2 {
		g.v2("ldp", gradX, x.s, 16*pair)
		g.v2("ldp", gradD, x.dp, 16*pair)
		g.gradWeights(e)
		x.drop(pair)
		x.store(pair, scale)
	}
	for _, p := range []reg{x.s, x.dp} {
		g.op("ADD $%d, %v", rowBytes, p)
	}
	for _, p := range []struct {
		at    reg
		bytes int
		label string
	}{{x.kept, 4, "all"}, {x.softcapGrad, rowBytes, "uncapped"}, {x.db, rowBytes, "unbiased"}} {
		g.op("CBZ %v, %s", p.at, p.label)
		g.op("ADD $%d, %v", p.bytes, p.at)
		g.label(p.label)
	}
	g.op("ADD %v, %v", dsStep, x.ds)
	g.count(rows, "row")
	g.done()
}

func pairLabel(name string, pair int) string { return name + string(rune('0'+pair)) }

func (x *pairGradients) drop(pair int) {
	whole := pairLabel("whole", pair)
	for i := range 2 {
		x.v("mov v%d.16b, v%d.16b", gradScratch+i, gradX+i)
	}
	x.op("CBZ %v, %s", x.kept, whole)
	x.v("ld1r {v%d.4s}, [x%d]", pairKept, x.kept)
	for i := range 2 {
		x.v("cmtst v%d.4s, v%d.4s, v%d.4s", gradSeen, pairKept, gradBits+pair+i)
		x.v("and v%d.16b, v%d.16b, v%d.16b", gradSeen, gradSeen, pairKeep)
		x.v("fmul v%d.4s, v%d.4s, v%d.4s", gradD+i, gradD+i, gradSeen)
		x.v("fmul v%d.4s, v%d.4s, v%d.4s", gradScratch+i, gradScratch+i, gradSeen)
	}
	x.label(whole)
}

func (x *pairGradients) store(pair int, scale reg) {
	const seen = gradScratch + 2
	hide := func(v, i int) { x.v("and v%d.16b, v%d.16b, v%d.16b", v, v, seen+i) }
	for i := range 2 {
		d := gradD + i
		x.v("cmtst v%d.4s, v%d.4s, v%d.4s", seen+i, gradWord, gradBits+pair+i)
		x.v("fsub v%d.4s, v%d.4s, v%d.4s", d, d, gradDelta)
		x.v("fmul v%d.4s, v%d.4s, v%d.4s", d, d, gradX+i)
		hide(gradScratch+i, i)
		hide(d, i)
	}
	x.v2("stp", gradScratch, x.s, 16*pair)
	unbiased, uncapped := pairLabel("unbiased", pair), pairLabel("uncapped", pair)
	x.op("CBZ %v, %s", x.db, unbiased)
	x.v2("stp", gradD, x.db, 16*pair)
	x.label(unbiased)
	x.v("dup v%d.4s, w%d", pairBy, scale)
	for i := range 2 {
		x.v("fmul v%d.4s, v%d.4s, v%d.4s", gradD+i, gradD+i, pairBy)
	}
	x.op("CBZ %v, %s", x.softcapGrad, uncapped)
	x.v2("ldp", gradX, x.softcapGrad, 16*pair)
	for i := range 2 {
		x.v("fmul v%d.4s, v%d.4s, v%d.4s", gradD+i, gradD+i, gradX+i)
		hide(gradD+i, i)
	}
	x.label(uncapped)
	x.v2("stp", gradD, x.ds, 16*pair)
}
