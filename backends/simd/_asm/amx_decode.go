package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The decode routines use tiles. While a routine reads one block of K or V, it prefetches a later
// block line by line. Decode has too little arithmetic to hide the latency of memory.

func (g *generator) aheadScores() {
	g.arithmetic("aheadScores", "func(s *float32, k *uint16, step int, q *uint32, words, keys, ahead int)",
		"sets s[j][i] to the dot product of row j of k and column i of q. Rows of k",
		"are step bf16 apart. words is the number of bf16 pairs in a row. q is [words][16] pairs, s is",
		"[keys][16]. words is a multiple of 16, and keys is a multiple of 32. words, keys > 0. For each",
		"cache line of k that the routine reads, it prefetches one line into L2. The prefetched memory is",
		"contiguous and begins ahead bytes after address k.")
	ahead, keys, k := param("ahead"), param("keys"), param("k")
	ADDQ(k, ahead)
	g.takeTiles()
	MOVQ(U32(tileBytes), stepB)
	MOVQ(stepB, stepC)
	Load(Param("step"), stepA)
	SHLQ(Imm(1), stepA)
	Load(Param("s"), tileC[0])
	Label("keys")
	down(tileC[0], stepC, tileC[1])
	MOVQ(k, tileA[0])
	down(k, stepA, tileA[1])
	Load(Param("q"), tileB)
	steps := param("words")
	for r := range tileA {
		TILEZERO(2 * r)
	}
	Label("words")
	loadTileB(0)
	for r := range tileA {
		loadTileA(r)
		for i := range tileRows {
			PREFETCHT1(Mem{Base: ahead, Disp: i * tileBytes})
		}
		ADDQ(U32(tileRows*tileBytes), ahead)
		g.multiplyAwake(r, 0)
		ADDQ(Imm(tileBytes), tileA[r])
	}
	down(tileB, stepB, tileB)
	SUBQ(Imm(tileRows), steps)
	JG(LabelRef("words"))
	storeTiles(1)
	down(tileC[1], stepC, tileC[0])
	down(k, stepA, k)
	down(k, stepA, k)
	SUBQ(Imm(2*tileRows), keys)
	JG(LabelRef("keys"))
	TILERELEASE()
	g.done()
}

// blockValues emits the routine that computes P V. It packs the rows of V in pairs into scratch
// memory, 32 keys at a time. A tile load waits for recent stores to the same memory. The routine
// therefore packs the rows of the next 32 keys before it multiplies the current 32 keys.
func (g *generator) blockValues() {
	g.arithmetic("blockValues", "func(sum *float32, step int, p *uint16, pStep, rows int, v *uint16, vStep int, pairs *uint32, keys, vdim, ahead int)",
		"sets sum to the product p·v. p is [rows][keys], v is [keys][vdim], and sum is",
		"[rows][vdim]. rows is 16 or 32. keys and vdim are positive multiples of 32. Rows of sum, p and v",
		"are step, pStep and vStep elements apart. The columns of sum are permuted: each 32 columns hold",
		"eight groups of four columns, in the order 0, 2, 4, 6, 1, 3, 5, 7.",
		"",
		"For each cache line of v that the routine reads, it prefetches one line into L2. The prefetched",
		"memory is contiguous and begins ahead bytes after address v. pairs is scratch, [2][16][LANES].")
	v, vStep, ahead := param("v"), bytes16(param("vStep")), param("ahead")
	ADDQ(v, ahead)
	g.takeTiles()
	Load(Param("step"), stepC)
	SHLQ(Imm(2), stepC)
	Load(Param("pStep"), stepA)
	SHLQ(Imm(1), stepA)
	Load(Param("pairs"), tileB)
	Load(Param("sum"), tileC[0])
	down(tileC[0], stepC, tileC[1])
	row, keys, toOther := GP64(), GP64(), GP64()
	MOVQ(U32(pairsBytes), toOther)
	other := func() {
		ADDQ(toOther, tileB)
		NEGQ(toOther)
	}
	Label("columns")
	for t := range 4 {
		TILEZERO(t)
	}
	Load(Param("p"), tileA[0])
	down(tileA[0], stepA, tileA[1])
	Load(Param("keys"), keys)
	MOVQ(v, row)
	g.packPairs(row, vStep, ahead)
	Label("keys")
	SUBQ(Imm(2*tileRows), keys)
	JZ(LabelRef("last"))
	other()
	g.packPairs(row, vStep, ahead)
	other()
	Label("last")
	g.productsOfRows()
	other()
	TESTQ(keys, keys)
	JNZ(LabelRef("keys"))
	storeRows()
	ADDQ(Imm(tileBytes), v)
	SUBQ(Imm(2*tileRows), address("vdim"))
	JG(LabelRef("columns"))
	TILERELEASE()
	g.done()
}

const pairsBytes = tileRows * 2 * tileBytes // bytes of 32 rows of V with 32 columns each

// packPairs packs 32 columns of 32 rows of V into pairs of rows at tileB. row holds the address of
// the first row, and ahead holds the address of the first line to prefetch. The code advances row
// and ahead.
func (g *generator) packPairs(row, vStep, ahead GPVirtual) {
	for i := range tileRows {
		x, y, t := g.registers[0], g.registers[1], g.registers[2]
		VMOVDQU32(Mem{Base: row}, x)
		VMOVDQU32(Mem{Base: row, Index: vStep, Scale: 1}, y)
		LEAQ(Mem{Base: row, Index: vStep, Scale: 2}, row)
		for line := range 2 {
			PREFETCHT1(Mem{Base: ahead, Disp: (2*i + line) * tileBytes})
		}
		VPUNPCKLWD(y, x, t)
		VPUNPCKHWD(y, x, x)
		VMOVDQU32(t, Mem{Base: tileB, Disp: 2 * i * tileBytes})
		VMOVDQU32(x, Mem{Base: tileB, Disp: (2*i + 1) * tileBytes})
	}
	ADDQ(U32(pairsBytes), ahead)
}

// productsOfRows multiplies 16 or 32 rows of P by the packed rows of V of 32 keys, and adds the
// products to the sums.
func (g *generator) productsOfRows() {
	for c := range 2 {
		loadTileB(c)
	}
	for r := range tileA {
		if r == 1 {
			CMPQ(address("rows"), Imm(tileRows))
			JE(LabelRef("few"))
		}
		loadTileA(r)
		for c := range 2 {
			g.multiplyAwake(r, c)
		}
		ADDQ(Imm(tileBytes), tileA[r])
	}
	Label("few")
}

// storeRows stores the sums of 16 or 32 rows of P V and advances the addresses of C to the next
// columns.
func storeRows() {
	eachTile(2, func(t, r, offset int) {
		if t == 2 {
			CMPQ(address("rows"), Imm(tileRows))
			JE(LabelRef("stored"))
		}
		TILESTORED(t, offset, tileC[r], stepC)
	})
	Label("stored")
	for r := range tileC {
		ADDQ(U32(2*tileBytes), tileC[r])
	}
}

func (g *generator) addPlanes() {
	g.arithmetic("addPlanes", "func(o *float32, oStep int, high *float32, step int, low *float32, rows, n int) bool",
		"adds the matrix high + low to the matrix o and returns true. If an element of",
		"high + low is not finite, it returns false and leaves o unchanged. o is [rows][n], with rows",
		"oStep elements apart. Rows of high and low are step elements apart. high and low have n columns,",
		"rounded up to a multiple of 32, in the order that blockValuesAMXBF16 produces. rows > 0, n > 0.")
	o, oStep, high, step, low := param("o"), bytes(param("oStep")), param("high"), bytes(param("step")), param("low")
	x, y, z, zero, wild, order := g.registers[0], g.registers[1], g.registers[2], g.registers[3], g.registers[4], g.registers[5:7]
	g.loadQuarterOrder(order)
	VXORPS(zero, zero, zero)
	VXORPS(wild, wild, wild)
	sumRows("check", high, low, step, x, y, func(GPVirtual) {
		VFMADD231PS(x, zero, wild) // 0 times NaN or infinity is NaN
		VFMADD231PS(y, zero, wild)
	}, func() {})
	yes := GP32()
	XORL(yes, yes)
	VCMPPS(Imm(3), wild, wild, K1) // unordered: NaN
	KORTESTW(K1, K1)
	JNZ(LabelRef("end"))
	Load(Param("high"), high)
	Load(Param("low"), low)
	to := GP64()
	MOVQ(o, to)
	sumRows("add", high, low, step, x, y, func(left GPVirtual) {
		columnMasks(left)
		VMOVAPS(x, z)
		VPERMT2PS(y, order[0], x)
		VPERMT2PS(y, order[1], z)
		masks := []OpmaskPhysical{K1, K2}
		for v, from := range []VecPhysical{x, z} {
			at := Mem{Base: to, Disp: v * 64}
			VMOVUPS_Z(at, masks[v], y)
			VADDPS(y, from, from)
			VMOVUPS(from, masks[v], at)
		}
		SUBQ(I32(-128), to)
	}, func() {
		ADDQ(oStep, o)
		MOVQ(o, to)
	})
	MOVL(U32(1), yes)
	Label("end")
	Store(yes.As8(), ReturnIndex(0))
	g.done()
}

// loadQuarterOrder loads the two permutations that undo the column order of blockValues' results.
func (g *generator) loadQuarterOrder(order []VecPhysical) {
	table := g.table("quarterOrder", func() {
		for i := range 32 {
			DATA(4*i, U32(uint32(i/8*4+i%8/4*16+i%4)))
		}
	})
	for i, z := range order {
		VMOVDQU32(table.Offset(i*64), z)
	}
}

// sumRows emits a loop over rows and, within a row, over groups of 32 columns. For a group, x gets
// the sum of high and low in the first 16 columns, and y in the other 16. columns emits the code
// for a group. The argument of columns is the number of columns left. next emits the code at the
// end of a row.
func sumRows(label string, high, low, step GPVirtual, x, y VecPhysical, columns func(left GPVirtual), next func()) {
	rows := param("rows")
	Label(label)
	i, left := GP64(), param("n")
	XORQ(i, i)
	Label(label + "columns")
	for v, to := range []VecPhysical{x, y} {
		VMOVUPS(Mem{Base: high, Index: i, Scale: 1, Disp: v * 64}, to)
		VADDPS(Mem{Base: low, Index: i, Scale: 1, Disp: v * 64}, to, to)
	}
	columns(left)
	SUBQ(I32(-128), i)
	SUBQ(Imm(32), left)
	JG(LabelRef(label + "columns"))
	ADDQ(step, high)
	ADDQ(step, low)
	next()
	DECQ(rows)
	JNZ(LabelRef(label))
}

// columnMasks sets K1 and K2 to the masks of the next 32 columns of a row. left is the number of
// columns left in the row.
func columnMasks(left GPVirtual) {
	ones := GP64()
	MOVQ(left, RCX)
	MOVQ(I32(-1), ones)
	CMPQ(RCX, Imm(32))
	JGE(LabelRef("whole"))
	SHLQ(CL, ones)
	NOTQ(ones) // one bit for each column left
	Label("whole")
	KMOVD(ones.As32(), K1)
	KSHIFTRD(Imm(16), K1, K2)
}
