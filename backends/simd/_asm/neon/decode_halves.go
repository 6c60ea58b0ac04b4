package main

// attendHalves writes the routine that multiplies 16-bit elements without widening. A product of
// two elements is exact, so only the addition to the sum rounds.
func (g *generator) attendHalves(tier, name string) {
	g.tier = tier
	storage{g, name, 2, true}.attend()
}

// Registers of a tile of 16-bit elements. Scores use the same registers as float32 tiles, except
// that a cache line of a query row takes four vectors. For values, one vector holds a query row's
// weights. This vector is one of V0 to V15, because multiplications by one element of a vector
// accept no other vector. Several keys share the vectors for rows of V.
const (
	halfWeights = 0  // one for each row
	halfKeys    = 2  // to 13: four for each of three keys
	halfScratch = 4  // for the conversion of the weights, before keys load
	halfOs      = 16 // eight for each row
)

// products returns the texts of the two instructions that add the products of eight elements to two
// vectors of sums. The texts lack the last operand. half is the shape of this operand: four or
// eight 16-bit elements. With bfloat16, the first instruction multiplies the even elements, and the
// second the odd elements.
func (x *attention) products() (one, other, half string) {
	if x.name == "BF16" {
		return "bfmlalb v%[1]d.4s, v%[2]d.8h, ", "bfmlalt v%[1]d.4s, v%[2]d.8h, ", "8h"
	}
	return "fmlal v%[1]d.4s, v%[2]d.4h, ", "fmlal2 v%[1]d.4s, v%[2]d.4h, ", "4h"
}

// loadHalves loads octets vectors of eight 16-bit elements and advances row.
func (x *attention) loadHalves(v, octets int, row reg) {
	if octets == 1 {
		x.v("ldr q%d, [x%d], #16", v, row)
		return
	}
	for pair := 0; pair < octets; pair += 2 {
		x.v("ldp q%d, q%d, [x%d], #32", v+pair, v+pair+1, row)
	}
}

// halfScores writes the dot products of rows of K and rows of Q, whose elements have 16 bits. The
// results are the same as with elements widened to float32.
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

// halfValues adds a tile's rows of V, times the keys' weights rounded to 16 bits, to rows of O.
// Each step along the rows loads and stores a part of O.
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
			x.op("ADD $%d, %v", 32*octets, x.others[r]) // the store does not advance the address: the next load would wait for the store
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

// narrowWeights multiplies the weights of one query row by 2^15 and converts them to the 16-bit
// elements of vector v. With this factor, binary16 weights above 2^-29 are normal numbers of 11
// bits, and a weight of 1 does not overflow. bfloat16 would need no factor, as it rounds all
// weights to 8 bits.
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
