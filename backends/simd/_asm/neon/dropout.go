package main

import "fmt"

// Dropout uses Philox4x32-7 with the counter {key/8, row, head, batch}, as in ../philox.go.
const (
	philoxM0, philoxM1 = 0xD2511F53, 0xCD9E8D57
	philoxW0, philoxW1 = 0x9E3779B9, 0xBB67AE85
	philoxRounds       = 7
)

// Registers of the function philox, which computes two vectors of counters in parallel, so that
// latencies overlap.
const (
	philoxCounters   = 0  // two counters of four words
	philoxScratch    = 8  // four for each counter
	philoxMs         = 16 // m0 and m1
	philoxWs         = 18 // w0 and w1
	philoxKeys       = 20 // k0 and k1 of the round
	philoxFirst      = 22 // k0 and k1 of the first round
	philoxLimit      = 24
	philoxHead       = 25
	philoxBatch      = 26
	philoxOwn        = 27 // 27 to 31 are free for the calling routine
	philoxCounterLen = 4
)

// philoxConstants loads the constants and the arguments of dropout.
func (g *generator) philoxConstants() {
	for i, x := range []uint32{philoxM0, philoxM1, philoxW0, philoxW1} {
		g.word(x, philoxMs+i)
	}
	seed := g.param("seed")
	g.v("dup v%d.4s, w%d", philoxFirst, seed)
	g.op("LSR $32, %v", seed)
	g.v("dup v%d.4s, w%d", philoxFirst+1, seed)
	g.used--
	g.broadcast("below", philoxLimit)
	g.broadcast("head", philoxHead)
	g.broadcast("batch", philoxBatch)
}

// philox computes the random words of two vectors of counters, given the first two words of each
// counter. It returns the registers of the random words.
func (g *generator) philox(first, second [2]int) (words [2][philoxCounterLen]int) {
	c := &words
	for i := range c {
		for w := range c[i] {
			c[i][w] = philoxCounters + philoxCounterLen*i + w
			from := []int{first[i], second[i], philoxHead, philoxBatch}[w]
			g.v("mov v%d.16b, v%d.16b", c[i][w], from)
		}
	}
	for i := range 2 {
		g.v("mov v%d.16b, v%d.16b", philoxKeys+i, philoxFirst+i)
	}
	for r := range philoxRounds {
		for i := range c {
			c[i] = g.philoxRound(c[i], philoxScratch+philoxCounterLen*i)
		}
		for i := 0; i < 2 && r < philoxRounds-1; i++ {
			g.v("add v%d.4s, v%d.4s, v%d.4s", philoxKeys+i, philoxKeys+i, philoxWs+i)
		}
	}
	return words
}

// philoxRound writes a round for a vector of counters, with four scratch vectors. It returns the
// registers of the new words.
func (g *generator) philoxRound(c [4]int, scratch int) [4]int {
	for i := range 2 {
		x, low, high := c[2*i], scratch+2*i, scratch+2*i+1
		g.v("umull v%d.2d, v%d.2s, v%d.2s", low, x, philoxMs+i)
		g.v("umull2 v%d.2d, v%d.4s, v%d.4s", high, x, philoxMs+i)
		g.v("uzp1 v%d.4s, v%d.4s, v%d.4s", x, low, high)   // lo
		g.v("uzp2 v%d.4s, v%d.4s, v%d.4s", low, low, high) // hi
	}
	g.v("eor v%d.16b, v%d.16b, v%d.16b", c[1], c[1], scratch+2)
	g.v("eor v%d.16b, v%d.16b, v%d.16b", c[3], c[3], scratch)
	g.v("eor v%d.16b, v%d.16b, v%d.16b", c[1], c[1], philoxKeys)
	g.v("eor v%d.16b, v%d.16b, v%d.16b", c[3], c[3], philoxKeys+1)
	return [4]int{c[1], c[2], c[3], c[0]}
}

func (g *generator) dropWeights() {
	g.routine("dropWeights", "s *float32, keys, key int, rows *uint32, head, batch uint32, seed uint64, below uint32",
		"sets weights to 0 if dropout drops them. s[j][i] is the weight of query row rows[i]",
		"and key key+j. Dropout drops a weight if its random number is less than below>>16. Random numbers",
		"have 16 bits. Philox4x32-7 computes the random numbers of keys 8n to 8n+7 from the counter {n,",
		"rows[i], head, batch}. seed is the key of Philox. The lower 16 bits of below are 0. s is",
		"[keys][16]. keys > 0, key >= 0.")
	g.philoxConstants()
	s, keys, group, rows := g.param("s"), g.param("keys"), g.param("key"), g.param("rows")
	j, at, row, left := g.temp(), g.temp(), g.temp(), g.temp()
	const number, row0, row1, x = philoxOwn, philoxOwn + 1, philoxOwn + 2, philoxOwn + 3
	g.op("AND $7, %v, %v", group, j) // the first key's offset in its group of eight
	g.op("LSR $3, %v", group)
	g.op("SUB %v<<%d, %v", j, 6, s)
	g.op("NEG %v, %v", j, j)
	g.label("group")
	g.op("MOVD $2, %v", left)
	g.label("pair")
	g.v("dup v%d.4s, w%d", number, group)
	g.v("ldp q%d, q%d, [x%d], #32", row0, row1, rows)
	words := g.philox([2]int{number, number}, [2]int{row0, row1})
	for key := range 2 * philoxCounterLen {
		w, kept := key%philoxCounterLen, philoxScratch
		skip := fmt.Sprintf("skip%d", key)
		g.op("ADD $%d, %v, %v", key, j, row)
		g.op("CMP %v, %v", keys, row)
		g.op("BHS %s", skip) // also if row is negative: the comparison is unsigned
		g.op("ADD $%d, %v, %v", key*rowBytes, s, at)
		g.v2("ldp", x, at, 0)
		for i := range 2 {
			g.half(kept, words[i][w], key)
			g.v("and v%d.16b, v%d.16b, v%d.16b", x+i, x+i, kept)
		}
		g.v2("stp", x, at, 0)
		g.label(skip)
	}
	g.op("ADD $%d, %v", rowBytes/2, s)
	g.count(left, "pair")
	g.op("SUB $%d, %v", rowBytes, rows)
	g.op("ADD $%d, %v", 7*rowBytes, s)
	g.op("ADD $1, %v", group)
	g.op("ADD $8, %v", j)
	g.op("CMP %v, %v", keys, j)
	g.op("BLT group")
	g.done()
}

// half sets all bits of the lanes of kept whose weight dropout keeps, and clears the other lanes.
// words holds the random words. key, 0 to 7, is the number of the attention key in its group of
// eight. The number selects the half of each word.
func (g *generator) half(kept, words, key int) {
	if key < philoxCounterLen {
		g.v("shl v%d.4s, v%d.4s, #16", kept, words)
		words = kept
	}
	g.v("cmhs v%d.4s, v%d.4s, v%d.4s", kept, words, philoxLimit)
}

// dropoutMask writes the routine for the dropout mask of a backward pass and of decode. A vector
// holds one word of each of four counters. The first two counters are for a query row and two
// groups of eight keys. The last two counters are for the next query row and the same keys.
func (g *generator) dropoutMask() {
	g.routine("dropoutMask", "kept *uint32, rows, row, key int, head, batch uint32, seed uint64, below uint32",
		"sets bit i of kept[r], for r < rows and i < 16, if dropout keeps the weight of query",
		"row row+r and key key+i. It clears all other bits of kept. Dropout keeps a weight if its random",
		"number is at least below>>16. Random numbers have 16 bits. Philox4x32-7 computes the random",
		"numbers of keys 8n to 8n+7 from the counter {n, row+r, head, batch}. seed is the key of Philox.",
		"The lower 16 bits of below are 0. key is a multiple of 8. rows > 0.")
	g.philoxConstants()
	kept, rows, row, key := g.param("kept"), g.param("rows"), g.param("row"), g.param("key")
	const groups, row0, row1, places, one = philoxOwn, philoxOwn + 1, philoxOwn + 2, philoxOwn + 3, philoxOwn + 4
	order := g.table("groupOrder", 0, 1, 0, 1)
	next := g.table("rowOrder", 0, 0, 1, 1)
	bits := g.table("groupBits", 1, 1<<8, 1, 1<<8)
	g.op("LSR $3, %v", key)
	g.v("dup v%d.4s, w%d", groups, key)
	g.v("ldr q%d, [x%d]", row0, order)
	g.v("add v%d.4s, v%d.4s, v%d.4s", groups, groups, row0)
	g.v("ldr q%d, [x%d]", places, bits)
	g.v("ldr q%d, [x%d]", one, next)
	g.label("rows")
	for i := range 2 {
		g.v("dup v%d.4s, w%d", row0+i, row)
		g.v("add v%d.4s, v%d.4s, v%d.4s", row0+i, row0+i, one)
		g.op("ADD $2, %v", row)
	}
	words := g.philox([2]int{groups, groups}, [2]int{row0, row1})
	for i, c := range words {
		sum, bit := philoxScratch+i, philoxScratch+2
		for key := range 2 * philoxCounterLen {
			to := bit
			if key == 0 {
				to = sum
			}
			g.half(to, c[key%philoxCounterLen], key)
			g.v("and v%d.16b, v%d.16b, v%d.16b", to, to, places)
			if key > 0 {
				g.v("shl v%d.4s, v%d.4s, #%d", bit, bit, key)
				g.v("orr v%d.16b, v%d.16b, v%d.16b", sum, sum, bit)
			}
		}
	}
	sum := philoxScratch
	g.v("addp v%d.4s, v%d.4s, v%d.4s", sum, sum, sum+1) // adds the two groups of each row
	for i := range 4 {
		g.v("str s%d, [x%d], #4", sum, kept)
		g.op("SUBS $1, %v", rows)
		g.op("BEQ end")
		if i < 3 {
			g.v("ext v%d.16b, v%d.16b, v%d.16b, #4", sum, sum, sum)
		}
	}
	g.op("B rows")
	g.label("end")
	g.done()
}
