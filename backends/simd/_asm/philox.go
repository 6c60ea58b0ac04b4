package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Dropout uses Philox4x32-7 with the counter {key/8, row, head, batch}. A counter yields random
// bits for eight attention keys, half of a 32-bit word for each. The first four keys get the lower
// halves of the four words, the other four the upper halves. Each of the seven rounds changes the
// counter c and the Philox key k:
//
//	hi0:lo0, hi1:lo1 = m0*c0, m1*c2
//	c0, c1, c2, c3 = hi1^c1^k0, lo1, hi0^c3^k1, lo0
//	k0, k1 = k0+w0, k1+w1
//
// Each word of a counter is in the lower half of a 64-bit lane. One instruction then computes a
// 64-bit product. The whole product can be the next c1 or c3, because later rounds ignore its upper
// half.
//
// In the first rounds most words are equal in all lanes, and many do not depend on the loop
// variable. Scalar code, or code before the loop, computes these words. Only five instructions of
// the first three rounds remain in the loop.
const (
	philoxM0, philoxM1 = 0xD2511F53, 0xCD9E8D57
	philoxW0, philoxW1 = 0x9E3779B9, 0xBB67AE85
	philoxRounds       = 7
)

// Words of the stack frame: the Philox keys of all rounds, then words that the loop computes in
// scalar code. In the first two rounds, the stored keys also include terms of head and batch.
const (
	wordK0, wordK1 = 0, philoxRounds
	wordOwn        = 2 * philoxRounds
	philoxWords    = wordOwn + 4
)

// A philox holds the operands of the rounds of Philox.
type philox struct {
	*generator

	frame     Mem
	m0, m1, t VecPhysical
	by        [2]GPVirtual // m0 and m1
}

func (g *generator) newPhilox(m0, m1, t VecPhysical) *philox {
	x := &philox{generator: g, m0: m0, m1: m1, t: t, by: [2]GPVirtual{GP64(), GP64()}}
	x.frame = AllocLocal(g.wordPlace(philoxWords))
	low, high := param("seed"), GP64()
	MOVQ(low, high)
	SHRQ(Imm(32), high)
	MOVL(U32(philoxM0), x.by[0].As32())
	MOVL(U32(philoxM1), x.by[1].As32())
	g.word(philoxM0, m0)
	g.word(philoxM1, m1)
	p := GP64()
	Load(Param("head"), p.As32())
	IMULQ(x.by[1], p)
	for r := range philoxRounds {
		k0, k1 := GP64(), GP64()
		MOVL(low.As32(), k0.As32())
		MOVL(high.As32(), k1.As32())
		switch r {
		case 0:
			batch := Load(Param("batch"), GP32())
			XORL(batch, k1.As32())
			hi := GP64()
			MOVQ(p, hi)
			SHRQ(Imm(32), hi)
			XORL(hi.As32(), k0.As32())
		case 1:
			XORL(p.As32(), k0.As32())
		}
		x.set(wordK0+r, k0)
		x.set(wordK1+r, k1)
		ADDL(U32(philoxW0), low.As32())
		ADDL(U32(philoxW1), high.As32())
	}
	return x
}

// inLanes reports whether the frame stores word i once for each lane. AVX-512 broadcasts words as
// it reads them. AVX2 would need an extra instruction, so the frame holds a copy of each Philox key
// for every lane.
func (g *generator) inLanes(i int) bool {
	return !g.avx512 && i < wordOwn
}

// wordPlace returns the byte offset of a word in the frame.
func (g *generator) wordPlace(i int) (bytes int) {
	for j := range i {
		if g.inLanes(j) {
			bytes += g.vectorBytes
		} else {
			bytes += 4
		}
	}
	return bytes
}

func (x *philox) at(i int) Mem { return x.frame.Offset(x.wordPlace(i)) }

func (x *philox) set(i int, from GPVirtual) {
	if !x.inLanes(i) {
		MOVL(from.As32(), x.at(i))
		return
	}
	x.broadcastWord(from.As32().(GPVirtual), x.t)
	VMOVDQU(x.t, x.at(i))
}

// times emits the scalar product of p and m0 (by = 0) or m1 (by = 1). The lower half of p then
// holds the lower half of the product. The returned register holds the upper half.
func (x *philox) times(by int, p GPVirtual) (hi GPVirtual) {
	hi = GP64()
	IMULQ(x.by[by], p)
	MOVQ(p, hi)
	SHRQ(Imm(32), hi)
	return hi
}

// xor sets z = y ^ word i of the frame. It destroys t.
func (x *philox) xor(i int, y, z VecPhysical) {
	switch {
	case x.avx512:
		VPXORD_BCST(x.at(i), y, z)
	case x.inLanes(i):
		VPXOR(x.at(i), y, z)
	default:
		VPBROADCASTD(x.at(i), x.t)
		VPXOR(x.t, y, z)
	}
}

// xorBoth sets z = z ^ y ^ word i of the frame.
func (x *philox) xorBoth(i int, y, z VecPhysical) {
	if x.avx512 {
		const all = 0x96
		VPTERNLOGD_BCST(Imm(all), x.at(i), y, z)
	} else {
		VPXOR(x.at(i), z, z)
		VPXOR(y, z, z)
	}
}

func (g *generator) xorVectors(x, y, z VecPhysical) {
	if g.avx512 {
		VPXORD(x, y, z)
	} else {
		VPXOR(x, y, z)
	}
}

// A counter holds the registers of a counter's four words. Loops compute two counters in parallel,
// so that latencies overlap.
type counter [4]VecPhysical

// upper sets the lower half of each 64-bit lane of z to the upper half of this lane of y.
// Processors with AMX shift on one port and shuffle on another. The routines for AMX use the
// shuffle, which leaves the other port to multiplications.
func (x *philox) upper(y, z VecPhysical) {
	if x.suffix == "AMXBF16" {
		VMOVSHDUP(y, z)
		return
	}
	VPSRLQ(Imm(32), y, z)
}

// fourth emits round 4. At its start c[0], c[1] and c[2] hold the words c1, c0 and c2 of the
// counter. c3 has no register. The caller therefore xors c3 and the key of the round into c[3]
// afterwards.
func (x *philox) fourth(c counter) {
	VPMULUDQ(x.m0, c[1], c[1])
	VPMULUDQ(x.m1, c[2], c[2])
	x.upper(c[2], x.t)
	x.xorBoth(wordK0+3, x.t, c[0])
	x.upper(c[1], c[3])
}

// rest emits the rounds after the fourth. It also reorders each counter, so that c[i] is the
// register of word i.
func (x *philox) rest(counters []counter) {
	for i, c := range counters {
		counters[i] = counter{c[0], c[2], c[3], c[1]}
	}
	for r := 4; r < philoxRounds; r++ {
		for i, c := range counters {
			VPMULUDQ(x.m0, c[0], c[0])
			VPMULUDQ(x.m1, c[2], c[2])
			x.upper(c[2], x.t)
			x.xorBoth(wordK0+r, x.t, c[1])
			x.upper(c[0], x.t)
			x.xorBoth(wordK1+r, x.t, c[3])
			counters[i] = counter{c[1], c[2], c[3], c[0]}
		}
	}
}

// odds sets the upper half of each 64-bit lane of low to the lower half of this lane of high.
func (x *philox) odds(high, low VecPhysical) {
	if x.avx512 {
		VMOVSLDUP(high, K1, low)
		return
	}
	VMOVSLDUP(high, x.t)
	VPBLENDD(Imm(0xaa), x.t, low, low)
}

// oddLanes sets K1 to the mask that odds and oddHalves use.
func (g *generator) oddLanes() {
	if g.avx512 {
		odd := GP32()
		MOVL(U32(0xaaaaaaaa), odd)
		KMOVD(odd, K1)
	}
}

// oddHalves combines the 32-bit words of low and high in z: each word of z has the lower half of
// low's word and the upper half of high's word.
func (g *generator) oddHalves(high, low, z VecPhysical) {
	if g.avx512 {
		VPBLENDMW(high, low, K1, z)
		return
	}
	VPBLENDW(Imm(0xaa), high, low, z)
}

// pairHalves pairs the 32-bit words of even and odd. Each word of lower gets the lower half of a
// word of even and the lower half of a word of odd, in this order. Each word of upper gets the two
// upper halves in the same order. upper may be the register even.
func (g *generator) pairHalves(odd, even, lower, upper VecPhysical) {
	VPSLLD(Imm(16), odd, lower)
	g.oddHalves(lower, even, lower)
	VPSRLD(Imm(16), even, upper)
	g.oddHalves(odd, upper, upper)
}

// broadcastHalf sets both halves of each word of z to the upper half of r.
func (g *generator) broadcastHalf(r GPVirtual, z VecPhysical) {
	upper := GP32()
	MOVL(r.As32(), upper)
	SHRL(Imm(16), upper)
	ORL(upper, r.As32())
	g.broadcastWord(r, z)
}
