package main

import "fmt"

const (
	decodeKeys  = 4   // rows of K or V that a tile covers
	manyKeys    = 8   // the same for a tile with one query row
	tileQueries = 2   // query rows of a tile
	scoreStep   = 144 // row stride of S in elements
	scoreBytes  = 4 * scoreStep
	entry       = 8 // bytes of a table entry
	octet       = 8 // elements of a step along a row
)

// A storage is an element type of K and V.
type storage struct {
	*generator
	name   string
	bytes  int
	halves bool // elements of Q, K and V have 16 bits and are multiplied without widening
}

// Registers of a decode tile. A score has two sums: one over the even vectors of the query row and
// the key, and one over the odd vectors. For values, one or two vectors hold the weights of a query
// row, and others hold a part of O. Several keys share the vectors for rows of K and V, because the
// processor renames registers.
const (
	decodeSums    = 0  // the first sum; (2r+half)*keys + key is the number of a sum
	decodeKeysV   = 16 // to 23 for scores, four for each of two keys; to 31 for values
	decodeQueries = 24 // two for each row, or four with 16-bit keys
	valueOs       = 0  // four for each row
	valueWeights  = 8  // two for each row
)

func (g *generator) attend() {
	for _, t := range []storage{{g, "F32", 4, false}, {g, "F16", 2, false}, {g, "BF16", 2, false}} {
		t.attend()
	}
}

// attend writes the routine that reads K and V in decode, with the head dim in the lanes. The
// routine computes the scores S = Q Kᵀ of a block and O += P V of the block before. It alternates
// between four rows of K and four rows of V. Prefetched rows of V thus arrive during the work on K,
// and rows of K arrive during the work on V.
func (t storage) attend() {
	scratch, scores, values := "scratch is not used.", (*attention).scores, (*attention).values
	if t.halves {
		scratch += " The elements of q have 16 bits, like the elements of K, and fill the\n// first half of each row of q. The routine multiplies the weights by u and rounds them to 16 bits."
		if t.name == "BF16" {
			scratch += "\n// In each group of 8 elements of a row of o, the even elements come first. A shorter group at the\n// end of a row stays in order."
		}
		scores, values = (*attention).halfScores, (*attention).halfValues
	}
	t.routine("attend"+t.name, "s *float32, k *byte, kAt *int, kAhead int, q *float32, qStep, dim, qRows, kKeys int, "+
		"o *float32, oStep int, scratch, p *float32, v *byte, vAt *int, vAhead, vdim, oRows, vKeys, ahead int",
		"computes the scores of one block of keys, and adds the weighted values of",
		"another block to o:\n//",
		"  - s[r][j] = Σ over c < dim of q[r][c]·K[j][c], for r < qRows and j < kKeys",
		"  - o[r][c] = o[r][c] + u·Σ over j < vKeys of p[r][j]·V[j][c], for r < oRows and c < vdim\n//",
		"The factor u is 1, except in attendF16NEONFHM and attendBF16NEONBF16, where u is 2^15.",
		"K and V have the element type in the routine's name. Row j of K begins kAt[j] bytes after address",
		fmt.Sprintf("k, and row j of V begins vAt[j] bytes after address v. Rows of s and p are %d elements apart.", scoreStep),
		"Rows of q are qStep elements apart, and rows of o are oStep elements apart. Both steps are",
		"multiples of 32. kKeys, vKeys <= 128. qRows, oRows > 0.\n//",
		"The routine also prefetches rows of K. If kAhead is not 0, it prefetches the memory kAhead bytes",
		"after each cache line that it reads. If kAhead is 0, it prefetches row j+ahead when it reads row",
		fmt.Sprintf("j. kAt then needs ahead+%d entries after the last key. The same holds for V, vAhead and vAt.", decodeKeys-1),
		scratch)
	x := &attention{storage: t}
	x.key = t.newSide("k", "dim", "q", "s", "qRows", "kKeys", "qStep")
	x.value = t.newSide("v", "vdim", "o", "p", "oRows", "vKeys", "oStep")
	x.rows, x.others = t.temps(manyKeys), t.temps(tileQueries)
	x.n, x.left, x.first, x.weights, x.ahead = t.temp(), t.temp(), t.temp(), t.temp(), t.temp()
	t.label("keys")
	x.half(&x.key, "score", func(label string, keys, rows int) { scores(x, label, keys, rows) })
	x.half(&x.value, "value", func(label string, keys, rows int) { values(x, label, keys, rows) })
	t.op("CBNZ %v, keys", x.key.keys)
	t.op("CBNZ %v, keys", x.value.keys)
	t.done()
}

// A side holds the arguments of one half of attend: of the scores, or of the values.
type side struct {
	name, dim, other, weights, rows, step string // names of arguments
	at, keys                              reg    // of K or V: the table entries of the next rows; the number of rows left
	scores                                reg    // S or P of the next keys
}

func (t storage) newSide(name, dim, other, weights, rows, keys, step string) side {
	return side{name, dim, other, weights, rows, step, t.param(name + "At"), t.param(keys), t.param(weights)}
}

// An attention holds the registers of attend.
type attention struct {
	storage
	key, value                     side
	rows                           []reg // current addresses in the rows of K or V of a tile
	others                         []reg // current addresses in the rows of Q or O of a tile
	n, left, first, weights, ahead reg   // elements left, rows of Q or O left, the first of these rows, scores or weights of this row, prefetch distance
}

// half writes the code for the scores or the values of the next keys, four keys at a time. If there
// is a single query row, the code handles eight keys at a time. If fewer than four keys are left,
// it handles one key at a time.
func (x *attention) half(s *side, label string, tile func(label string, keys, rows int)) {
	x.op("CBZ %v, %sEnd", s.keys, label)
	x.op("CMP $%d, %v", decodeKeys, s.keys)
	x.op("BLT %sOne", label)
	x.load(s.rows, x.left)
	x.op("CMP $1, %v", x.left)
	x.op("BNE %sFour", label)
	x.op("CMP $%d, %v", manyKeys, s.keys)
	x.op("BLT %sFour", label)
	x.turn(s, label+"Eight", manyKeys, func(keys int) { tile(label+"Eight", keys, 1) })
	x.op("B %sEnd", label)
	x.label(label + "Four")
	x.turn(s, label+"Four", decodeKeys, func(keys int) { x.overRows(s, label+"Four", keys, []int{tileQueries, 1}, tile) })
	x.op("B %sEnd", label)
	x.label(label + "One")
	x.turn(s, label+"One", 1, func(keys int) { x.overRows(s, label+"One", keys, []int{1}, tile) })
	x.label(label + "End")
}

func (x *attention) turn(s *side, label string, keys int, rows func(keys int)) {
	x.setKeys(s, keys, label)
	x.load(s.other, x.first)
	x.op("MOVD %v, %v", s.scores, x.weights)
	if keys == manyKeys {
		x.op("MOVD %v, %v", x.first, x.others[0])
		x.load(s.dim, x.n)
	}
	rows(keys)
	x.op("ADD $%d, %v", 4*keys, s.scores)
	x.op("SUB $%d, %v", keys, s.keys)
}

func (x *attention) overRows(s *side, name string, keys int, sizes []int, tile func(label string, keys, rows int)) {
	x.load(s.rows, x.left)
	x.inGroups(name+"rows", x.left, sizes, func(rows int, label string) {
		x.setOthers(s, rows)
		x.load(s.dim, x.n)
		tile(label, keys, rows)
		x.op("ADD $%d, %v", rows*scoreBytes, x.weights)
		x.back(s, keys)
	})
}

// setKeys sets the addresses of the rows of K or V of the next keys. It advances s.at past the
// table entries of these keys.
func (x *attention) setKeys(s *side, keys int, label string) {
	first := x.n
	x.load(s.name, first)
	for i := range keys {
		x.op("MOVD %d(%v), %v", entry*i, s.at, x.rows[i])
		x.op("ADD %v, %v", first, x.rows[i])
	}
	x.load(s.name+"Ahead", x.ahead)
	x.op("CBNZ %v, %sset", x.ahead, label)
	x.prefetchPlaces(s, keys, label)
	x.label(label + "set")
	x.op("ADD $%d, %v", entry*keys, s.at)
}

// prefetchPlaces prefetches the rows of later keys. The table entries of these keys are at a
// distance given by the argument ahead. The code prefetches each row completely before the next,
// because the lines of a page load faster in sequence.
func (x *attention) prefetchPlaces(s *side, keys int, label string) {
	table, end, at, size := x.left, x.first, x.weights, x.others[0]
	x.load("ahead", table)
	x.op("ADD %v<<3, %v, %v", table, s.at, table)
	x.load(s.dim, size)
	x.op("LSL $%d, %v", map[int]int{4: 2, 2: 1}[x.bytes], size)
	if keys > 1 {
		x.op("MOVD $%d, %v", keys, x.ahead) // the loop ends with 0
	}
	x.label(label + "places")
	x.op("MOVD.P %d(%v), %v", entry, table, at)
	x.op("ADD %v, %v", x.n, at)
	x.op("ADD %v, %v, %v", at, size, end)
	x.prefetchLines(label+"ahead", at, end)
	if keys > 1 {
		x.count(x.ahead, label+"places")
	}
}

// setOthers sets the addresses of a tile's rows of Q or O. It advances x.first past these rows.
func (x *attention) setOthers(s *side, rows int) {
	x.load(s.step, x.n)
	for r := range rows {
		x.op("MOVD %v, %v", x.first, x.others[r])
		x.op("ADD %v<<2, %v", x.n, x.first)
	}
}

// back moves the addresses in the rows of K or V back to the starts of the rows.
func (x *attention) back(s *side, keys int) {
	x.load(s.dim, x.n)
	for _, row := range x.rows[:keys] {
		x.op("SUB %v<<%d, %v", x.n, map[int]int{4: 2, 2: 1}[x.bytes], row)
	}
}

// alongRow writes loops along the rows of K or V: over whole cache lines of each row, then groups
// of eight elements, then single elements. octets writes the code for n groups of eight elements,
// and one the code for a single element.
func (x *attention) alongRow(label string, keys int, octets func(n int), one func()) {
	perLine := line / x.bytes
	x.op("SUBS $%d, %v", perLine, x.n)
	x.op("BLT %sfew", label)
	x.label(label + "lines")
	x.op("CBZ %v, %sfetched", x.ahead, label)
	for _, row := range x.rows[:keys] {
		x.v("prfm pldl2keep, [x%d, x%d]", row, x.ahead)
	}
	x.label(label + "fetched")
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

// eachOctet writes the code for n groups of eight elements, as vectors of four float32. The code
// handles two groups at a time if one instruction loads both groups. step writes the code for the
// given number of float32 vectors.
func (x *attention) eachOctet(n int, step func(vectors int)) {
	if x.bytes == 2 && n%2 == 0 {
		for range n / 2 {
			step(4)
		}
		return
	}
	for range n {
		step(2)
	}
}

func (x *attention) loadKey(v, vectors int, row reg) {
	switch {
	case x.bytes == 4:
		x.v("ldp q%d, q%d, [x%d], #32", v, v+1, row)
	case vectors == 4:
		x.v("ldp q%d, q%d, [x%d], #32", v, v+2, row)
		x.widenPair(x.name, v)
		x.widenPair(x.name, v+2)
	default:
		x.v("ldr q%d, [x%d], #16", v, row)
		x.widenPair(x.name, v)
	}
}

// loadOne loads an element and clears the rest of the vector.
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

func (x *attention) scores(label string, keys, rows int) {
	sum := func(r, half, key int) int { return decodeSums + (2*r+half)*keys + key }
	for v := range 2 * rows * keys {
		x.clear(v)
	}
	x.alongRow(label, keys, func(n int) {
		x.eachOctet(n, func(vectors int) {
			for r := range rows {
				for pair := 0; pair < vectors; pair += 2 {
					q := decodeQueries + vectors*r + pair
					x.v("ldp q%d, q%d, [x%d], #32", q, q+1, x.others[r])
				}
			}
			for i := range keys {
				key := decodeKeysV + i%2*4
				x.loadKey(key, vectors, x.rows[i])
				for r := range rows {
					for v := range vectors {
						x.v("fmla v%d.4s, v%d.4s, v%d.4s", sum(r, v%2, i), key+v, decodeQueries+vectors*r+v)
					}
				}
			}
		})
	}, func() {
		for r := range rows {
			x.v("ldr s%d, [x%d], #4", decodeQueries+r, x.others[r])
		}
		for i := range keys {
			x.loadOne(decodeKeysV+i%8, x.rows[i])
			for r := range rows {
				x.v("fmla v%d.4s, v%d.4s, v%d.4s", sum(r, 0, i), decodeKeysV+i%8, decodeQueries+r)
			}
		}
	})
	for r := range rows {
		x.storeScores(sum(r, 0, 0), sum(r, 1, 0), keys, r*scoreBytes)
	}
}

// storeScores adds the two sums of each key, adds up the lanes of the result and stores this score.
func (x *attention) storeScores(first, second, keys, offset int) {
	for i := range keys {
		x.v("fadd v%d.4s, v%d.4s, v%d.4s", first+i, first+i, second+i)
	}
	if keys == 1 {
		x.v("faddp v%d.4s, v%d.4s, v%d.4s", first, first, first)
		x.v("faddp v%d.4s, v%d.4s, v%d.4s", first, first, first)
		x.v("str s%d, [x%d, #%d]", first, x.weights, offset)
		return
	}
	for i := 0; i < keys; i += 4 {
		a := first + i
		x.v("faddp v%d.4s, v%d.4s, v%d.4s", a, a, a+1)
		x.v("faddp v%d.4s, v%d.4s, v%d.4s", a+1, a+2, a+3)
		x.v("faddp v%d.4s, v%d.4s, v%d.4s", a, a, a+1)
		x.v("str q%d, [x%d, #%d]", a, x.weights, offset+4*i)
	}
}

// values adds a tile's rows of V, times the keys' weights, to rows of O. Each step along the rows
// loads and stores a part of O.
func (x *attention) values(label string, keys, rows int) {
	for r := range rows {
		for i := 0; i < keys; i += 4 {
			x.v(map[bool]string{true: "ldr q%d, [x%d, #%d]", false: "ldr s%d, [x%d, #%d]"}[keys > 1], valueWeights+2*r+i/4, x.weights, r*scoreBytes+4*i)
		}
	}
	add := func(o, v, r, i int) {
		x.v("fmla v%d.4s, v%d.4s, v%d.s[%d]", o, v, valueWeights+2*r+i/4, i%4)
	}
	x.alongRow(label, keys, func(n int) {
		x.eachOctet(n, func(vectors int) {
			for r := range rows {
				for pair := 0; pair < vectors; pair += 2 {
					x.v2("ldp", valueOs+4*r+pair, x.others[r], 16*pair)
				}
			}
			for i := range keys {
				key := decodeKeysV + i%4*4
				x.loadKey(key, vectors, x.rows[i])
				for r := range rows {
					for v := range vectors {
						add(valueOs+4*r+v, key+v, r, i)
					}
				}
			}
			for r := range rows {
				for pair := 0; pair < vectors; pair += 2 {
					x.v2("stp", valueOs+4*r+pair, x.others[r], 16*pair)
				}
				x.op("ADD $%d, %v", 16*vectors, x.others[r]) // the store does not advance the address: the next load would wait for the store
			}
		})
	}, func() {
		for r := range rows {
			x.v("ldr s%d, [x%d]", valueOs+4*r, x.others[r])
		}
		for i := range keys {
			x.loadOne(decodeKeysV+i, x.rows[i])
			for r := range rows {
				add(valueOs+4*r, decodeKeysV+i, r, i)
			}
		}
		for r := range rows {
			x.v("str s%d, [x%d], #4", valueOs+4*r, x.others[r])
		}
	})
}
