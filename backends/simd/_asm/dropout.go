package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (g *generator) dropWeights() {
	g.routine("dropWeights", "func(s *float32, keys, key int, rows *uint32, head, batch uint32, seed uint64, below uint32)",
		"sets weights to 0 if dropout drops them. s[j][i] is the weight of query row rows[i]",
		"and key key+j. Dropout drops a weight if its random number is less than below>>16. Random numbers",
		"have 16 bits. Philox4x32-7 computes the random numbers of keys 8n to 8n+7 from the counter {n,",
		"rows[i], head, batch}. seed is the key of Philox. The lower 16 bits of below are 0. s is",
		"[keys][LANES]. keys > 0, key >= 0.")
	r := g.registers
	x := g.newPhilox(r[9], r[10], r[8])
	below := r[11]
	limit := Load(Param("below"), GP32()).(GPVirtual)
	g.broadcastWord(limit, below)
	g.oddLanes()
	products := x.rowProducts(r[0])
	s, keys, group, j := param("s"), param("keys"), param("key"), GP64()
	MOVQ(group, j)
	ANDQ(Imm(7), j)
	SHRQ(Imm(3), group)
	before := GP64()
	IMUL3Q(I32(g.rowBytes), j, before)
	SUBQ(before, s)
	NEGQ(j)
	Label("group")
	x.keyWords(group)
	for v := range vectors {
		rows := x.evenAndOdd(v, products, r)
		for w, words := range rows[0] {
			x.odds(rows[1][w], words)
			lower := rows[1][w]
			VPSLLD(Imm(16), words, lower)
			for half, numbers := range []VecPhysical{lower, words} {
				key := 4*half + w
				skip := fmt.Sprintf("skip%d", 8*v+key)
				at := GP64()
				LEAQ(Mem{Base: j, Disp: key}, at)
				CMPQ(at, keys)
				JCC(LabelRef(skip)) // also if at is negative: the comparison is unsigned
				g.dropVector(numbers, below, x.t, g.part(Mem{Base: s, Disp: key * g.rowBytes}, v))
				Label(skip)
			}
		}
	}
	ADDQ(U32(uint32(8*g.rowBytes)), s)
	INCQ(group)
	ADDQ(Imm(8), j)
	CMPQ(j, keys)
	JL(LabelRef("group"))
	g.done()
}

func (g *generator) dropPairs() {
	g.routine("dropPairs", "func(p *uint32, keys, key int, rows *uint32, head, batch uint32, seed uint64, below uint32)",
		"applies dropout to weights in bf16 pairs. The pair p[j][i] holds the weights of",
		"query row rows[i] and of keys key+2j and key+2j+1. The routine drops the same weights as",
		"dropWeightsAVX512. p is [keys/2][LANES], with room for a multiple of 8 keys. key is a multiple of",
		"8. keys > 0, key >= 0.")
	r := g.registers
	x := g.newPhilox(r[9], r[10], r[8])
	below := r[11]
	limit := Load(Param("below"), GP32()).(GPVirtual)
	g.broadcastHalf(limit, below)
	g.oddLanes()
	products := x.rowProducts(r[0])
	p, keys, group := param("p"), param("keys"), param("key")
	SHRQ(Imm(3), group)
	Label("group")
	x.keyWords(group)
	for v := range vectors {
		rows := x.evenAndOdd(v, products, r)
		for w, words := range rows[0] {
			x.odds(rows[1][w], words)
		}
		for pair := range 2 {
			even, odd, lower := rows[0][2*pair], rows[0][2*pair+1], rows[1][0]
			x.pairHalves(odd, even, lower, even)
			for half, numbers := range []VecPhysical{lower, even} {
				const notBelow = 5
				at := g.part(Mem{Base: p, Disp: (2*half + pair) * g.rowBytes}, v)
				VPCMPUW(Imm(notBelow), below, numbers, K2)
				VMOVDQU16_Z(at, K2, x.t)
				VMOVDQU32(x.t, at)
			}
		}
	}
	ADDQ(U32(uint32(4*g.rowBytes)), p)
	INCQ(group)
	SUBQ(Imm(8), keys)
	JG(LabelRef("group"))
	g.done()
}

func (g *generator) broadcastWord(r GPVirtual, z VecPhysical) {
	if g.avx512 {
		VPBROADCASTD(r, z)
		return
	}
	VMOVD(r, z.AsX())
	VPBROADCASTD(z.AsX(), z)
}

// dropVector sets element i of the vector at m to 0 if element i of words is less than element i of
// limits. t is scratch.
func (g *generator) dropVector(words, limits, t VecPhysical, m Mem) {
	if g.avx512 {
		const notBelow = 5
		VPCMPUD(Imm(notBelow), limits, words, K2)
		VMOVUPS_Z(m, K2, t)
	} else {
		VPMAXUD(words, limits, t)
		VPCMPEQD(words, t, t)
		VPAND(m, t, t)
	}
	VMOVUPS(t, m)
}

// rowProducts emits the products m0·c0 of round 2, which depend on the query row but not on the
// key. Each vector of query rows has two vectors of products: one for even rows and one for odd
// rows. load returns vector i of products, and a vector of their upper halves.
func (x *philox) rowProducts(z VecPhysical) (load func(i int, c counter) (product, high VecPhysical)) {
	const n = 2 * vectors
	rows, products, highs := param("rows"), x.registers[len(x.registers)-2*n:], x.registers[len(x.registers)-n:]
	room := func(int) Mem { return Mem{} }
	if !x.avx512 {
		m := AllocLocal(n * x.vectorBytes)
		room = func(i int) Mem { return m.Offset(i * x.vectorBytes) }
	}
	for i := range n {
		VMOVUPS(x.part(Mem{Base: rows}, i/2), z)
		if i%2 == 1 {
			VPSRLQ(Imm(32), z, z)
		}
		x.xor(wordK0, z, z)
		VPMULUDQ(x.m0, z, z)
		if x.avx512 {
			VMOVDQU32(z, products[i])
			VPSRLQ(Imm(32), z, highs[i])
		} else {
			VMOVDQU(z, room(i))
		}
	}
	return func(i int, c counter) (product, high VecPhysical) {
		if x.avx512 {
			return products[i], highs[i]
		}
		VMOVDQU(room(i), c[2])
		VPSRLQ(Imm(32), c[2], c[0])
		return c[2], c[0]
	}
}

// Words of the stack frame that depend only on the group of eight keys. The loop xors them into the
// counter: into c2 in round 2, c0 and c2 in round 3, and c2 in round 4.
const (
	wordC2 = wordOwn + iota
	wordC0Third
	wordC2Third
	wordC2Fourth
)

func (x *philox) keyWords(group GPVirtual) {
	p := GP64()
	MOVL(group.As32(), p.As32())
	hi := x.times(0, p)
	XORL(x.at(wordK1+1), p.As32())
	x.set(wordC2, p)
	XORL(x.at(wordK1), hi.As32())
	p = hi
	hi = x.times(1, p)
	XORL(x.at(wordK0+2), p.As32())
	x.set(wordC0Third, p)
	XORL(x.at(wordK0+1), hi.As32())
	p = hi
	hi = x.times(0, p)
	XORL(x.at(wordK1+2), hi.As32())
	x.set(wordC2Third, hi)
	XORL(x.at(wordK1+3), p.As32())
	x.set(wordC2Fourth, p)
}

// evenAndOdd emits the random words for the even and the odd query rows in vector v of a tile.
func (x *philox) evenAndOdd(v int, products func(i int, c counter) (product, high VecPhysical), r []VecPhysical) []counter {
	rows := []counter{counter(r[0:4]), counter(r[4:8])}
	for i, c := range rows {
		product, high := products(2*v+i, c)
		x.rowRounds(product, high, c)
	}
	x.rest(rows)
	return rows
}

// rowRounds emits the part of rounds 2 to 4 that depends on the query rows.
func (x *philox) rowRounds(product, high VecPhysical, c counter) {
	x.xor(wordC2, high, c[0])
	VPMULUDQ(x.m1, c[0], c[0])
	x.upper(c[0], c[1])
	x.xor(wordC0Third, c[1], c[1])
	x.xor(wordC2Third, product, c[2])
	x.fourth(c)
	x.xor(wordC2Fourth, c[3], c[3])
}

// dropoutMask emits the routine for the dropout mask of a backward pass and of decode. Neighboring
// 64-bit lanes of a vector hold the counters of two query rows.
func (g *generator) dropoutMask() {
	g.routine("dropoutMask", "func(kept *uint32, rows, row, key int, head, batch uint32, seed uint64, below uint32)",
		"sets bit i of kept[r], for r < rows and i < LANES, if dropout keeps the weight of",
		"query row row+r and key key+i. It clears all other bits of kept. Dropout keeps a weight if its",
		"random number is at least below>>16. Random numbers have 16 bits. Philox4x32-7 computes the",
		"random numbers of keys 8n to 8n+7 from the counter {n, row+r, head, batch}. seed is the key of",
		"Philox. The lower 16 bits of below are 0. key is a multiple of 8. rows > 0.")
	r := g.registers
	x := g.newPhilox(r[9], r[10], r[8])
	below := r[11]
	limit := Load(Param("below"), GP32()).(GPVirtual)
	g.broadcastHalf(limit, below)
	g.oddLanes()
	of := x.keyProducts(r[12:16], counter(r[0:4]))
	kept, rows, row := param("kept"), param("rows"), param("row")
	Label("rows")
	two := []counter{counter(r[0:4]), counter(r[4:8])}
	for i, c := range two {
		x.keyRounds(row, 2*i, of, c)
	}
	x.rest(two)
	end := func(n int) {
		CMPQ(rows, Imm(uint64(n)))
		JLE(LabelRef("end"))
	}
	for i, c := range two {
		if i == 1 {
			end(2)
		}
		x.storeKept(c, below, Mem{Base: kept, Disp: 8 * i}, func() { end(2*i + 1) })
	}
	ADDQ(Imm(16), kept)
	ADDQ(Imm(4), row)
	SUBQ(Imm(4), rows)
	JG(LabelRef("rows"))
	Label("end")
	g.done()
}

// keyRounds emits the part of rounds 1 to 4 that depends on the query row. The two rows of a vector
// have the numbers row+i and row+i+1.
func (x *philox) keyRounds(row GPVirtual, i int, of keyProducts, c counter) {
	both := x.table("rowOrder", func() {
		for i := range x.lanes / 4 {
			DATA(8*i, U64(uint64(i%2)))
		}
	})
	first := GP32()
	LEAL(Mem{Base: row, Disp: i}, first)
	x.broadcastWord(first.(GPVirtual), c[2])
	VPADDD(both, c[2], c[2])
	x.xor(wordK0, c[2], c[2])
	VPMULUDQ(x.m0, c[2], c[2])
	x.upper(c[2], c[0])
	x.xorBoth(wordK1+1, of.first, c[0])
	VPMULUDQ(x.m1, c[0], c[0])
	x.upper(c[0], c[1])
	x.xorVectors(of.second, c[1], c[1])
	x.xorBoth(wordK1+2, of.high, c[2])
	x.fourth(c)
	x.xorVectors(of.third, c[3], c[3])
}

// keyProducts holds the terms that do not depend on the query row. first is m0·c0 of round 1.
// second is m1·c2 of round 2, xored with the key of round 3. high is the upper half of m0·c0 of
// round 3. third is the same product, xored with the key of round 4.
type keyProducts struct{ first, second, high, third VecPhysical }

// keyProducts emits the terms of the type keyProducts for several groups of eight attention keys.
// Each group has two 64-bit lanes, one for each of two query rows.
func (x *philox) keyProducts(r []VecPhysical, c counter) keyProducts {
	of := keyProducts{r[0], r[1], r[2], r[3]}
	order := x.table("groupOrder", func() {
		for i := range x.lanes / 4 {
			DATA(8*i, U64(uint64(i/2)))
		}
	})
	group, t := param("key"), c[1]
	SHRQ(Imm(3), group)
	x.broadcastWord(group.As32().(GPVirtual), of.first)
	VPADDD(order, of.first, of.first)
	VPMULUDQ(x.m0, of.first, of.first)
	VPSRLQ(Imm(32), of.first, c[0])
	x.xor(wordK1, c[0], c[0])
	VPMULUDQ(x.m1, c[0], c[0])
	x.xor(wordK0+2, c[0], of.second)
	VPSRLQ(Imm(32), c[0], t)
	x.xor(wordK0+1, t, t)
	VPMULUDQ(x.m0, t, t)
	VPSRLQ(Imm(32), t, of.high)
	x.xor(wordK1+3, t, of.third)
	return of
}

// storeKept emits the code that compares the random words of two query rows with below, and stores
// the resulting mask bits. between emits code between the stores of the first and the second row.
// This code may end the routine.
func (x *philox) storeKept(c counter, below VecPhysical, kept Mem, between func()) {
	x.odds(c[2], c[0])
	x.odds(c[3], c[1])
	x.pairHalves(c[1], c[0], c[2], c[0])
	VPUNPCKHQDQ(c[0], c[2], c[1]) // in each 128 bits, the upper half belongs to the second row
	VPUNPCKLQDQ(c[0], c[2], c[0])
	rows := []VecPhysical{c[0], c[1]}
	if x.avx512 {
		const notBelow = 5
		for i, z := range rows {
			VPCMPUW(Imm(notBelow), below, z, K2)
			KMOVD(K2, kept.Offset(4*i))
			if i == 0 {
				between()
			}
		}
		return
	}
	for _, z := range rows {
		VPMAXUW(z, below, x.t)
		VPCMPEQW(z, x.t, z)
	}
	const rowByRow = 0xd8
	VPACKSSWB(c[1], c[0], c[0])
	VPERMQ(Imm(rowByRow), c[0], c[0])
	bits, first := GP32(), GP32()
	VPMOVMSKB(c[0], bits)
	MOVWLZX(bits.As16(), first)
	MOVL(first, kept)
	between()
	SHRL(Imm(16), bits)
	MOVL(bits, kept.Offset(4))
}
