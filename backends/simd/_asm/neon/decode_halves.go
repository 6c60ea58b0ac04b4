package main

// attendHalves writes the routine that multiplies 16-bit elements without widening. A product of
// two is exact and is rounded once, with its sum.
func (g *generator) attendHalves(tier, name string) {
	g.tier = tier
	storage{g, name, 2, true}.attend()
}

// Registers of a tile of halves. Scores: as for float32, except that a line of a query row takes four
// vectors. Values: the weights of a row's keys are elements of one vector, among the lower sixteen as
// products by element require. Vectors of keys are reused in turn.
const (
	halfWeights = 0  // one for each row
	halfKeys    = 2  // to 13: four for a key, three keys
	halfScratch = 4  // for the weights, before keys load
	halfOs      = 16 // eight for each row
)

// products returns the two instructions that add products of eight halves to two vectors, without
// the last operand, and the shape of that operand. For bfloat16 one multiplies the even elements,
// the other the odd ones.
func (x *attention) products() (one, other, half string) {
	if x.name == "BF16" {
		return "bfmlalb v%[1]d.4s, v%[2]d.8h, ", "bfmlalt v%[1]d.4s, v%[2]d.8h, ", "8h"
	}
	return "fmlal v%[1]d.4s, v%[2]d.4h, ", "fmlal2 v%[1]d.4s, v%[2]d.4h, ", "4h"
}

// loadHalves loads vectors of 8 halves and advances.
func (x *attention) loadHalves(v, octets int, row reg) {
	if octets == 1 {
		x.v("ldr q%d, [x%d], #16", v, row)
		return
	}
	for pair := 0; pair < octets; pair += 2 {
		x.v("ldp q%d, q%d, [x%d], #32", v+pair, v+pair+1, row)
	}
}

// halfScores writes the scores of some keys with some rows, all in 16 bits. Its sums equal the sums
// of widened elements.
func (x *attention) halfScores(label string, keys, rows int) {
	sum := func(r, half, key int) int { return decodeSums + (2*r+half)*keys + key }
	one, other, half := x.products()
	for v := range 2 * rows * keys {
		x.clear(v)
	}
	x.alongRow(label, keys, func(octets int) {
		for r := range rows {
			x.loadHalves(decodeQueries+4*r, octets, x.others[r])
		}
		for i := range keys {
			key := decodeKeysV + i%2*4
			x.loadHalves(key, octets, x.rows[i])
			for r := range rows {
				for o := range octets {
					x.v(one+"v%[3]d."+half, sum(r, 0, i), key+o, decodeQueries+4*r+o)
					x.v(other+"v%[3]d."+half, sum(r, 1, i), key+o, decodeQueries+4*r+o)
				}
			}
		}
	}, func() {
		for r := range rows {
			x.v("ldr h%d, [x%d], #2", decodeQueries+r, x.others[r])
		}
		for i := range keys {
			x.v("ldr h%d, [x%d], #2", decodeKeysV+i%8, x.rows[i])
			for r := range rows {
				x.v(one+"v%[3]d."+half, sum(r, 0, i), decodeKeysV+i%8, decodeQueries+r)
			}
		}
	})
	for r := range rows {
		x.storeScores(sum(r, 0, 0), sum(r, 1, 0), keys, r*scoreBytes)
	}
}

// halfValues writes the contribution of some keys to some rows of O, with 16-bit weights. O passes
// through registers.
func (x *attention) halfValues(label string, keys, rows int) {
	one, other, _ := x.products()
	for r := range rows {
		x.narrowWeights(halfWeights+r, keys, r*scoreBytes)
	}
	add := func(name string, o, v, r, i int) {
		x.v(name+"v%[3]d.h[%[4]d]", o, v, halfWeights+r, i)
	}
	x.alongRow(label, keys, func(octets int) {
		for r := range rows {
			for o := range octets {
				x.v2("ldp", halfOs+8*r+2*o, x.others[r], 32*o)
			}
		}
		for i := range keys {
			key := halfKeys + i%3*4
			x.loadHalves(key, octets, x.rows[i])
			for r := range rows {
				for o := range octets {
					add(one, halfOs+8*r+2*o, key+o, r, i)
					add(other, halfOs+8*r+2*o+1, key+o, r, i)
				}
			}
		}
		for r := range rows {
			for o := range octets {
				x.v2("stp", halfOs+8*r+2*o, x.others[r], 32*o)
			}
			x.op("ADD $%d, %v", 32*octets, x.others[r]) // not by the store: the next load would wait for it
		}
	}, func() {
		for r := range rows {
			x.v("ldr s%d, [x%d]", halfOs+8*r, x.others[r])
		}
		for i := range keys {
			x.v("ldr h%d, [x%d], #2", halfKeys+i, x.rows[i])
			for r := range rows {
				add(one, halfOs+8*r, halfKeys+i, r, i)
			}
		}
		for r := range rows {
			x.v("str s%d, [x%d], #4", halfOs+8*r, x.others[r])
		}
	})
}

// narrowWeights writes the weights of a row's keys, times 2^15, as 16-bit elements of a vector. The
// factor rounds binary16 weights above 2^-29 to 11 bits, like normal numbers, and 2^15 does not
// overflow. bfloat16 rounds all weights to 8 bits and needs no factor.
func (x *attention) narrowWeights(v, keys, offset int) {
	const p, unit = halfScratch, halfScratch + 2
	x.v("movi v%d.4s, #71, lsl #24", unit) // 2^15
	switch keys {
	case 1:
		x.v("ldr s%d, [x%d, #%d]", p, x.weights, offset)
	case decodeKeys:
		x.v("ldr q%d, [x%d, #%d]", p, x.weights, offset)
	default:
		x.v2("ldp", p, x.weights, offset)
		x.v("fmul v%d.4s, v%d.4s, v%d.4s", p+1, p+1, unit)
	}
	x.v("fmul v%d.4s, v%d.4s, v%d.4s", p, p, unit)
	narrow := "fcvtn"
	if x.name == "BF16" {
		narrow = "bfcvtn"
	}
	x.v(narrow+" v%d.4h, v%d.4s", v, p)
	if keys == manyKeys {
		x.v(narrow+"2 v%d.8h, v%d.4s", v, p+1)
	}
}
