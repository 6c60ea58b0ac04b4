package main

import (
	"fmt"
	"math"
)

const (
	decodeKeys  = 4   // keys of a tile
	tileQueries = 2   // query rows of a tile
	scoreStep   = 144 // elements between rows of S
	scoreBytes  = 4 * scoreStep
	entry       = 8 // bytes of a table of places
	octet       = 8 // elements of a step along a row
)

// A storage is a type of K and V.
type storage struct {
	*generator
	name      string
	bytes     int
	scattered bool // rows lie where a table says, as those of pages do
}

// The registers of a tile of decode. Scores: two sums for each row and key, of which either has every other vector of
// a row. Values: the weights of a row's keys in one vector, two vectors of O. Keys take two vectors each.
const (
	decodeSums    = 0  // (2r+half)*4 + key
	decodeKeysV   = 16 // and to 23
	decodeQueries = 24 // two for each row
	decodeWeight  = 28 // one for each row
)

// attend writes what reads K and V, with the head dim in the lanes: the scores S = Q Kᵀ of one
// block and O += P V of the block before, four keys in turn, so that K and V both keep coming
// while one or the other is computed with.
func (t storage) attend() {
	name, rows := "attend", "rows of K and V kStep and vStep bytes, and what lies kAhead and vAhead bytes further is prefetched."
	signature := "s *float32, k *byte, kStep, kAhead int, q *float32, qStep, dim, qRows, kKeys int, " +
		"o *float32, oStep int, idle, p *float32, v *byte, vStep, vAhead, vdim, oRows, vKeys int"
	if t.scattered {
		name, rows = "attendAt", fmt.Sprintf("row j of K kAt[j] bytes after k, of V vAt[j] bytes after v. Row j+ahead is prefetched: the tables have ahead+%d more.", decodeKeys-1)
		signature = "s *float32, k *byte, kAt *int, q *float32, qStep, dim, qRows, kKeys int, " +
			"o *float32, oStep int, idle, p *float32, v *byte, vAt *int, vdim, oRows, vKeys, ahead int"
	}
	t.routine(name+t.name, signature,
		"sets s[r][j] = dot(q[r], k[j]) for qRows rows of Q and kKeys rows of K, and",
		"adds to o[r] the sum over vKeys rows of V of p[r][j]*v[j] for oRows rows of O. Rows of S and P lie",
		fmt.Sprintf("%d elements apart; rows of Q and O qStep and oStep, multiples of 32, Q with 0 beyond dim;", scoreStep), rows,
		"idle is not used. kKeys and vKeys <= 128, 0 < qRows, oRows.")
	x := &attention{storage: t}
	x.key = t.newSide("k", "dim", "q", "s", "qRows", "kKeys", "qStep")
	x.value = t.newSide("v", "vdim", "o", "p", "oRows", "vKeys", "oStep")
	x.rows, x.others = t.temps(decodeKeys), t.temps(tileQueries)
	x.n, x.left, x.first, x.weights, x.ahead = t.temp(), t.temp(), t.temp(), t.temp(), t.temp()
	t.label("keys")
	x.half(&x.key, "score", x.scores)
	x.half(&x.value, "value", x.values)
	t.op("CBNZ %v, keys", x.key.keys)
	t.op("CBNZ %v, keys", x.value.keys)
	t.done()
}

// A side is the arguments of the scores or of the values.
type side struct {
	name, dim, other, weights, rows, step string // names of arguments
	at, keys                              reg    // K or V: the next row, or the table; how many are left
	scores                                reg    // S or P of the next keys
}

func (t storage) newSide(name, dim, other, weights, rows, keys, step string) side {
	at := name
	if t.scattered {
		at = name + "At"
	}
	return side{name, dim, other, weights, rows, step, t.param(at), t.param(keys), t.param(weights)}
}

// An attention is the registers of attend.
type attention struct {
	storage
	key, value                     side
	rows                           []reg // of K or V, of a tile
	others                         []reg // of Q or O, of a tile
	n, left, first, weights, ahead reg   // elements left, rows of Q or O left, the first of them, their scores
}

// half writes a turn of one side: four keys, or one where there are fewer.
func (x *attention) half(s *side, label string, tile func(label string, keys, rows int)) {
	x.op("CBZ %v, %sEnd", s.keys, label)
	x.op("CMP $%d, %v", decodeKeys, s.keys)
	x.op("BLT %sOne", label)
	for _, keys := range []int{decodeKeys, 1} {
		if keys == 1 {
			x.label(label + "One")
		}
		name := fmt.Sprintf("%s%d", label, keys)
		x.setKeys(s, keys, name)
		x.load(s.other, x.first)
		x.load(s.rows, x.left)
		x.op("MOVD %v, %v", s.scores, x.weights)
		x.inGroups(name+"rows", x.left, []int{tileQueries, 1}, func(rows int, label string) {
			x.setOthers(s, rows)
			x.load(s.dim, x.n)
			tile(label, keys, rows)
			x.op("ADD $%d, %v", rows*scoreBytes, x.weights)
			x.back(s, keys)
		})
		x.op("ADD $%d, %v", 4*keys, s.scores)
		x.op("SUB $%d, %v", keys, s.keys)
		if keys > 1 {
			x.op("B %sEnd", label)
		}
	}
	x.label(label + "End")
}

// setKeys sets the rows of the next keys, and moves on.
func (x *attention) setKeys(s *side, keys int, label string) {
	step := x.n
	if x.scattered {
		x.load(s.name, step)
		for i := range keys {
			x.op("MOVD %d(%v), %v", entry*i, s.at, x.rows[i])
			x.op("ADD %v, %v", step, x.rows[i])
		}
		x.prefetchScattered(s, keys, label)
		x.op("ADD $%d, %v", entry*keys, s.at)
		return
	}
	x.load(s.name+"Step", step)
	for i := range keys {
		x.op("MOVD %v, %v", s.at, x.rows[i])
		x.op("ADD %v, %v", step, s.at)
	}
	x.load(s.name+"Ahead", x.ahead)
}

// prefetchScattered prefetches rows one by one: lines of a page come faster one after the other.
func (x *attention) prefetchScattered(s *side, keys int, label string) {
	table, end, at := x.left, x.first, x.weights
	x.load("ahead", table)
	x.op("ADD %v<<3, %v, %v", table, s.at, table)
	for i := range keys {
		x.load(s.dim, end)
		x.op("MOVD %d(%v), %v", entry*i, table, at)
		x.op("ADD %v, %v", x.n, at)
		x.op("LSL $%d, %v", map[int]int{4: 2, 2: 1}[x.bytes], end)
		x.op("ADD %v, %v", at, end)
		x.prefetchLines(fmt.Sprintf("%sahead%d", label, i), at, end)
	}
}

// setOthers sets the rows of Q or O of a tile, and moves on.
func (x *attention) setOthers(s *side, rows int) {
	x.load(s.step, x.n)
	for r := range rows {
		x.op("MOVD %v, %v", x.first, x.others[r])
		x.op("ADD %v<<2, %v", x.n, x.first)
	}
}

// back moves the rows of keys back to their beginning.
func (x *attention) back(s *side, keys int) {
	x.load(s.dim, x.n)
	for _, row := range x.rows[:keys] {
		x.op("SUB %v<<%d, %v", x.n, map[int]int{4: 2, 2: 1}[x.bytes], row)
	}
}

// alongRow writes loops over a row: of a cache line of a key at a time, of eight elements, and of
// one. octets and one write what is done.
func (x *attention) alongRow(label string, keys int, octets func(n int), one func()) {
	perLine := line / x.bytes
	x.op("SUBS $%d, %v", perLine, x.n)
	x.op("BLT %sfew", label)
	x.label(label + "lines")
	if !x.scattered {
		for _, row := range x.rows[:keys] {
			x.v("prfm pldl2keep, [x%d, x%d]", row, x.ahead)
		}
	}
	octets(perLine / octet)
	x.op("SUBS $%d, %v", perLine, x.n)
	x.op("BGE %slines", label)
	x.label(label + "few")
	x.op("ADDS $%d, %v", perLine, x.n)
	x.op("BEQ %send", label)
	x.op("SUBS $%d, %v", octet, x.n)
	x.op("BLT %slast", label)
	x.label(label + "octet")
	octets(1)
	x.op("SUBS $%d, %v", octet, x.n)
	x.op("BGE %soctet", label)
	x.label(label + "last")
	x.op("ADDS $%d, %v", octet, x.n)
	x.op("BEQ %send", label)
	x.label(label + "one")
	one()
	x.count(x.n, label+"one")
	x.label(label + "end")
}

// loadOctet loads eight elements of a row as two vectors of float32, and moves on.
func (x *attention) loadOctet(v int, row reg) {
	if x.bytes == 4 {
		x.v("ldp q%d, q%d, [x%d], #32", v, v+1, row)
		return
	}
	x.v("ldr q%d, [x%d], #16", v, row)
	x.widenPair(x.name, v)
}

// loadOne loads an element, with zeros beside it.
func (x *attention) loadOne(v int, row reg) {
	switch x.name {
	case "F32":
		x.v("ldr s%d, [x%d], #4", v, row)
	case "F16":
		x.v("ldr h%d, [x%d], #2", v, row)
		x.v("fcvtl v%d.4s, v%d.4h", v, v)
	default:
		x.v("ldr h%d, [x%d], #2", v, row)
		x.v("shll v%d.4s, v%d.4h, #16", v, v)
	}
}

// scores writes the scores of some keys with some rows.
func (x *attention) scores(label string, keys, rows int) {
	sum := func(r, half, key int) int { return decodeSums + (2*r+half)*decodeKeys + key }
	for v := range 2 * rows * decodeKeys {
		x.clear(v)
	}
	x.alongRow(label, keys, func(n int) {
		for range n {
			for r := range rows {
				x.v("ldp q%d, q%d, [x%d], #32", decodeQueries+2*r, decodeQueries+2*r+1, x.others[r])
			}
			for i := range keys {
				x.loadOctet(decodeKeysV+2*i, x.rows[i])
				for r := range rows {
					for half := range 2 {
						x.v("fmla v%d.4s, v%d.4s, v%d.4s", sum(r, half, i), decodeKeysV+2*i+half, decodeQueries+2*r+half)
					}
				}
			}
		}
	}, func() {
		for r := range rows {
			x.v("ldr s%d, [x%d], #4", decodeQueries+2*r, x.others[r])
		}
		for i := range keys {
			x.loadOne(decodeKeysV+2*i, x.rows[i])
			for r := range rows {
				x.v("fmla v%d.4s, v%d.4s, v%d.4s", sum(r, 0, i), decodeKeysV+2*i, decodeQueries+2*r)
			}
		}
	})
	for r := range rows {
		for i := range keys {
			x.v("fadd v%d.4s, v%d.4s, v%d.4s", sum(r, 0, i), sum(r, 0, i), sum(r, 1, i))
		}
		a := sum(r, 0, 0)
		x.v("faddp v%d.4s, v%d.4s, v%d.4s", a, a, a+1)
		x.v("faddp v%d.4s, v%d.4s, v%d.4s", a+1, a+2, a+3)
		x.v("faddp v%d.4s, v%d.4s, v%d.4s", a, a, a+1)
		x.v(map[int]string{decodeKeys: "str q%d, [x%d, #%d]", 1: "str s%d, [x%d, #%d]"}[keys], a, x.weights, r*scoreBytes)
	}
}

// values writes what some keys add to some rows. O passes through registers.
func (x *attention) values(label string, keys, rows int) {
	for r := range rows {
		x.v(map[int]string{decodeKeys: "ldr q%d, [x%d, #%d]", 1: "ldr s%d, [x%d, #%d]"}[keys], decodeWeight+r, x.weights, r*scoreBytes)
	}
	x.alongRow(label, keys, func(n int) {
		for range n {
			for r := range rows {
				x.v2("ldp", decodeQueries+2*r, x.others[r], 0)
			}
			for i := range keys {
				x.loadOctet(decodeKeysV+2*i, x.rows[i])
				for r := range rows {
					for half := range 2 {
						x.v("fmla v%d.4s, v%d.4s, v%d.s[%d]", decodeQueries+2*r+half, decodeKeysV+2*i+half, decodeWeight+r, i)
					}
				}
			}
			for r := range rows {
				x.v("stp q%d, q%d, [x%d], #32", decodeQueries+2*r, decodeQueries+2*r+1, x.others[r])
			}
		}
	}, func() {
		for r := range rows {
			x.v("ldr s%d, [x%d]", decodeQueries+2*r, x.others[r])
		}
		for i := range keys {
			x.loadOne(decodeKeysV+2*i, x.rows[i])
			for r := range rows {
				x.v("fmla v%d.4s, v%d.4s, v%d.s[%d]", decodeQueries+2*r, decodeKeysV+2*i, decodeWeight+r, i)
			}
		}
		for r := range rows {
			x.v("str s%d, [x%d], #4", decodeQueries+2*r, x.others[r])
		}
	})
}

// decodeWeights writes P = 2^(S - max), in place, with the running maximum and sum, and the
// rescaling of O.
func (g *generator) decodeWeights() {
	g.routine("decodeWeights", "s *float32, rows, keys int, m, l *float32, scale float32, o *float32, oStep int",
		"raises m[r] to the largest s[r][j], multiplies l[r] and o[r] with 2^(scale*(the old m[r] - m[r])), sets",
		"s[r][j] = 2^(scale*(s[r][j] - m[r])) and adds these to l[r]. An m[r] of -Inf counts as the lowest finite",
		fmt.Sprintf("number. Rows of S lie %d elements apart, with -Inf from keys to a multiple of 16; rows of O oStep", scoreStep),
		"elements, a multiple of 16. 0 < keys <= 128, 0 < rows.")
	s, rows, keys, m, l := g.param("s"), g.param("rows"), g.param("keys"), g.param("m"), g.param("l")
	o, oStep := g.param("o"), g.stepParam("oStep")
	at, n, one := g.temp(), g.temp(), g.temp()
	const top, lowest, before = 27, 28, 29 // and weightShift in four copies, weightSum
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
		each(func(q int) { g.v("fmaxnm v%d.4s, v%d.4s, v%d.4s", weightShift+q, weightShift+q, weightX+q) }) // a NaN score leaves it as it is
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

// endWeights sets alpha, which it leaves in weightX, and adds the sums to alpha times l.
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

// rescale multiplies a row of O with weightX, unless that is 1: most blocks do not raise the
// maximum.
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
