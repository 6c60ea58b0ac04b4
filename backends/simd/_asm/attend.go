package main

import (
	"math"
	"strconv"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// attend emits the routine that computes a tile's attention in one call, if V has no NaN or
// infinity that a mask hides. Its results equal, bit for bit, the results of scores, maskScores, expScores,
// finalizeLSE, addValues and transpose in sequence. With a bias, scoreMod is among them. Each of these routines sets and restores MXCSR. Every write
// to MXCSR waits for pending instructions. Short sequences have too little work to hide these
// waits, so one routine does all steps. The product O = P V has columns of O in the lanes, so O
// needs no transpose.
func (g *generator) attend() {
	g.arithmetic("attendTile", "func(o *float32, oStep int, totals, k *float32, kStep int, v *float32, vStep int, queries, s *float32, masks *uint32, bias *float32, biasStep int, rows, dim, vdim, keys int, ahead *float32, scale, unit, factor float32)",
		"computes o, the attention of query rows over keys k with values v. Query i sees",
		"key j if bit i of masks[j] is set. If masks is nil, every query sees every key. rows is the number of rows of o. keys is the number of rows of k and v.",
		"The score of query row i and row j of k is their dot product or, if bias is not nil,",
		"factor·(dot product) + bias[i][j]. totals is [4][LANES]. For query row i:",
		"",
		"  - totals[0][i] = m, the largest score of row i and a key that it sees",
		"  - totals[1][i] = l = Σ over these keys of 2^(scale·(score - m))",
		"  - totals[2][i] = 1/l, or 0 if l is 0",
		"  - totals[3][i] = LSE = unit·m + ln(l), or -Inf if l is 0",
		"",
		"Rows of o, k and v are oStep, kStep and vStep elements apart. vdim is at least LANES. queries",
		"is [dim][LANES], the query rows transposed. s is scratch, [padded][LANES]. padded is keys, rounded",
		"up to a multiple of "+strconv.Itoa(g.lanes/vectors)+". The routine",
		"reads padded elements of LANES rows of bias, which begin biasStep elements apart. The elements",
		"from keys on must be -Inf. It prefetches memory from address ahead on, as scores"+g.suffix+" does.",
		"rows > 0, keys > 0.")
	g.attendScores()
	g.attendBias()
	g.attendMasks()
	g.attendWeights()
	g.attendValues()
	g.done()
}

// Row numbers of totals.
const (
	totalMax = iota
	totalSum
	totalBy
	totalLSE
)

func (g *generator) total(row int) GPVirtual {
	p := param("totals")
	if row > 0 {
		ADDQ(U32(uint32(row*g.rowBytes)), p)
	}
	return p
}

// queryLanes emits the routine that transposes the query rows for attendTile. It computes nothing, so it
// need not set MXCSR, as transpose does.
func (g *generator) queryLanes() {
	g.routine("queryLanes", "func(queries, q *float32, qStep, dim, rows int)",
		"sets queries, [dims][LANES], to the transpose of q, [LANES][dims]. dims is dim, rounded up to a",
		"multiple of 16. Rows of q are qStep elements apart. If rows is at most LANES/2, the routine neither reads",
		"nor sets the second half of the lanes.")
	n := g.vectorBytes / 4
	q, queries, srcStep, dstStep := param("q"), param("queries"), bytes(param("qStep")), GP64()
	MOVQ(U32(uint32(g.rowBytes)), dstStep)
	end := GP64()
	LEAQ(Mem{Base: queries, Disp: g.rowBytes}, end)
	CMPQ(address("rows"), Imm(uint64(n)))
	JG(LabelRef("queries"))
	SUBQ(U32(uint32(g.vectorBytes)), end)
	Label("queries")
	src, dst, left := GP64(), GP64(), param("dim")
	MOVQ(q, src)
	MOVQ(queries, dst)
	Label("dims")
	g.transposeBlock(dst, dstStep, src, srcStep, asRead, storeColumn)
	ADDQ(U32(uint32(g.vectorBytes)), src)
	ADDQ(U32(uint32(n*g.rowBytes)), dst)
	SUBQ(U32(uint32(n)), left)
	JG(LabelRef("dims"))
	for range n / 8 {
		LEAQ(Mem{Base: q, Index: srcStep, Scale: 8}, q)
	}
	ADDQ(U32(uint32(g.vectorBytes)), queries)
	CMPQ(queries, end)
	JB(LabelRef("queries"))
	g.done()
}

func (g *generator) attendScores() {
	lowest, rowMax := g.registers[0], g.total(totalMax)
	g.constant(float32(math.Inf(-1)), lowest)
	for v := range vectors {
		VMOVUPS(lowest, g.part(Mem{Base: rowMax}, v))
	}
	CMPQ(address("rows"), Imm(uint64(g.lanes/vectors)))
	JLE(LabelRef("few"))
	scores := func(g *generator, name string, unroll int) {
		x := scoreRows{generator: g, s: param("s"), k: param("k"), q: param("queries"), step: bytes(param("kStep")), keys: param("keys"), rowMax: rowMax, ahead: param("ahead"), unroll: unroll, rest: 2}
		x.groups(name, g.groupsOf(2))
	}
	scores(g, "keys", 2*unroll)
	JMP(LabelRef("scored"))
	Label("few")
	scores(g.oneVector(), "fewKeys", 2) // less unrolling saves code
	Label("scored")
}

// oneVector returns a generator of products for the first vector of a row alone. The other vector
// has no queries.
func (g *generator) oneVector() *generator {
	one := *g
	one.lanesB, one.groups = g.lanesB[:1], []int{8, 4, 2, 1}
	return &one
}

// attendBias emits the scores with bias, if the routine has one. The bias has query rows in its
// rows: each block is transposed in registers and stored with the scores.
func (g *generator) attendBias() {
	n := g.vectorBytes / 4
	bias := param("bias")
	TESTQ(bias, bias)
	JZ(LabelRef("masks"))
	factor, max := g.registers[8], g.registers[9]
	floatParam("factor", factor)
	s, rowMax, step, rowBytes, end := param("s"), g.total(totalMax), bytes(param("biasStep")), GP64(), GP64()
	MOVQ(U32(uint32(g.rowBytes)), rowBytes)
	LEAQ(Mem{Base: s, Disp: g.rowBytes}, end)
	Label("biasRows")
	g.constant(float32(math.Inf(-1)), max)
	src, dst, left := GP64(), GP64(), param("keys")
	MOVQ(bias, src)
	MOVQ(s, dst)
	Label("biasKeys")
	g.transposeBlock(dst, rowBytes, src, step, asRead, func(z VecPhysical, score Mem) {
		VFMADD231PS(score, factor, z)
		VMOVUPS(z, score)
		VMAXPS(max, z, max) // a NaN score leaves the maximum as it is
	})
	ADDQ(U32(uint32(g.vectorBytes)), src)
	ADDQ(U32(uint32(n*g.rowBytes)), dst)
	SUBQ(U32(uint32(n)), left)
	JG(LabelRef("biasKeys"))
	VMOVUPS(max, Mem{Base: rowMax})
	for range n / 8 {
		LEAQ(Mem{Base: bias, Index: step, Scale: 8}, bias)
	}
	ADDQ(U32(uint32(g.vectorBytes)), rowMax)
	ADDQ(U32(uint32(g.vectorBytes)), s)
	CMPQ(s, end)
	JB(LabelRef("biasRows"))
	Label("masks")
}

func (g *generator) attendMasks() {
	masks := param("masks")
	TESTQ(masks, masks)
	JZ(LabelRef("weights"))
	for _, z := range g.registers[4:6] {
		g.constant(float32(math.Inf(-1)), z)
	}
	g.hideScores("hide", param("s"), masks, param("keys"), g.total(totalMax))
	Label("weights")
}

func (g *generator) attendWeights() {
	x, n, p, shift, sum, scale := g.registers[0], g.registers[1], g.registers[2], g.registers[3:5], g.registers[5:7], g.registers[7]
	g.exp2Constants()
	floatParam("scale", scale)
	rowMax, l := g.total(totalMax), g.total(totalSum)
	g.constant(-math.MaxFloat32, n)
	VXORPS(x, x, x)
	for v, z := range shift {
		VMAXPS(g.part(Mem{Base: rowMax}, v), n, z)
		VMOVUPS(x, g.part(Mem{Base: l}, v))
	}
	g.sumWeights(param("s"), param("keys"), l, x, n, p, scale, shift, sum)
	g.endTotals(g.total(totalLSE), g.total(totalBy), rowMax, l, "unit")
}

// A rowSum holds the operands of O = P V.
type rowSum struct {
	*generator
	o, oStep     GPVirtual // the current row
	by           GPVirtual // 1/l of the current row
	s            GPVirtual // the weights of the current row
	v            GPVirtual // the current columns of V
	vStep, step3 GPVirtual
}

// attendValues emits O = P V / l. It adds the products in the same order as the routine addValues.
func (g *generator) attendValues() {
	values := param("keys")
	IMULQ(address("vdim"), values)
	CMPQ(values, U32(fewValues))
	JLE(LabelRef("fewValues"))
	g.rowValues("all", 1)
	JMP(LabelRef("end"))
	Label("fewValues")
	g.rowValues("few", 2)
	Label("end")
}

// rowValues emits the loops over panels of columns and over rows of O. each is the number of sums per
// element of O, 1 or 2. If vdim is no multiple of the lanes, the last panel overlaps the panel before
// it, and stores the same bits there again.
func (g *generator) rowValues(name string, each int) {
	x := rowSum{generator: g, o: GP64(), oStep: bytes(param("oStep")), by: GP64(), s: GP64(), v: param("v"), vStep: bytes(param("vStep")), step3: GP64()}
	LEAQ(Mem{Base: x.vStep, Index: x.vStep, Scale: 2}, x.step3)
	columns, o := param("vdim"), param("o")
	Label(name + "panel")
	rows, at := param("rows"), param("s")
	MOVQ(at, x.s)
	MOVQ(g.total(totalBy), x.by)
	MOVQ(o, x.o)
	inGroups(name, rows, g.groupsOf(each), func(rows int, label string) {
		sums := g.accumulators(each * rows)
		clearSums(sums)
		x.tile(label, sums[:rows], sums[(each-1)*rows:])
		if each == 2 {
			addOdd(sums[:rows], sums[rows:])
		}
		x.store(sums[:rows])
	})
	ADDQ(U32(uint32(g.rowBytes)), o)
	ADDQ(U32(uint32(g.rowBytes)), x.v)
	SUBQ(U32(uint32(g.lanes)), columns)
	CMPQ(columns, U32(uint32(g.lanes)))
	JGE(LabelRef(name + "panel"))
	SUBQ(U32(uint32(g.lanes)), columns)
	CMPQ(columns, I32(int32(-g.lanes)))
	JE(LabelRef(name + "panels"))
	LEAQ(Mem{Base: o, Index: columns, Scale: 4}, o)
	LEAQ(Mem{Base: x.v, Index: columns, Scale: 4}, x.v)
	MOVQ(U32(uint32(g.lanes)), columns)
	JMP(LabelRef(name + "panel"))
	Label(name + "panels")
}

// tile adds the products of all keys to the sums of len(even) rows of O. odd holds the sums of odd
// keys. If all keys share their sums, even and odd are the same slice.
func (g *rowSum) tile(label string, even, odd [][]VecPhysical) {
	weights, b, n := GP64(), GP64(), param("keys")
	MOVQ(g.s, weights)
	MOVQ(g.v, b)
	step := func(i int) {
		sums := [2][][]VecPhysical{even, odd}[i%2]
		g.generator.step(sums, rowAt(b, g.vStep, g.step3, i), func(r int) Mem { return Mem{Base: weights, Disp: i*g.rowBytes + 4*r} })
	}
	next := func(steps int) {
		advance(b, g.vStep, steps)
		ADDQ(U32(uint32(steps*g.rowBytes)), weights)
	}
	if &even[0] != &odd[0] && len(even) < g.groupsOf(2)[0] { // the last rows: less unrolling saves code
		inPairs(label+"keys", n, 2, step, next)
	} else {
		overKeys(label+"keys", even, odd, n, step, next)
	}
}

func (g *rowSum) store(sums [][]VecPhysical) {
	by := g.broadcasts[0]
	for r, row := range sums {
		VBROADCASTSS(Mem{Base: g.by, Disp: 4 * r}, by)
		for v, z := range row {
			VMULPS(by, z, z)
			VMOVUPS(z, g.part(Mem{Base: g.o}, v))
		}
		ADDQ(g.oStep, g.o)
	}
	ADDQ(Imm(uint64(4*len(sums))), g.by)
	ADDQ(Imm(uint64(4*len(sums))), g.s)
}
