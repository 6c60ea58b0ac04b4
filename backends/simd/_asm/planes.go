package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A float32 is the sum of three bf16: its upper bits, those of what is left, and
// the rest. So a product of float32 is one of nine products of bf16, of which the
// three smallest are below half a unit in the last place of the largest, or below
// one where an operand is cut, not rounded:
//
//	x y = x0 y0 + (x0 y1 + x1 y0) + (x0 y2 + x1 y1 + x2 y0) + ...
//
// The small ones are summed first, for all columns, so that they are rounded in
// their own units. An operand is three planes of bf16, so many bytes apart.

const (
	planes   = 3
	wildFrom = 0x1p58 // magnitudes that planes leave out
)

// planeRoutines emits the routines on planes.
func planeRoutines() {
	planeScores()
	planeValues()
	planeWeights()
	planeSums()
	planeGradients()
	splitRows()
}

// planeScores emits S = K Qᵀ.
func planeScores() {
	routine("planeScores", "func(s *float32, k *uint16, step, kPlane int, q *uint32, qPlane, words, keys int, top *float32)",
		"is scores for planes of K and Q that lie kPlane and qPlane bytes apart.")
	tileScores(func(a GPVirtual) { planeProducts("", "words", "kPlane", "q", "qPlane", a, nothing) })
}

// planeValues emits Oᵀ = alpha Oᵀ + Vᵀ P.
func planeValues() {
	arithmetic("planeValues", "func(o *float32, v *uint32, step, vPlane int, p *uint32, pPlane, pairs, vdim int, alpha, sum *float32)",
		"is addValues for planes of V and P that lie vPlane and pPlane bytes apart.")
	tileValues(func(a GPVirtual) { planeProducts("", "pairs", "vPlane", "p", "pPlane", a, nothing) })
}

// planeSums emits C += A B, for up to 32 columns. What is added is summed apart, from
// the smallest products on.
func planeSums() {
	routine("planeSums", "func(c *float32, cStep int, a *uint16, aStep, aPlane int, b *uint32, bStep, bPlane, rows, columns, pairs int, sum *float32)",
		"adds to c[r][x] the sum over pairs i of a[r][i]*b[i][x], products of pairs. Rows lie cStep",
		"elements, aStep halves and bStep pairs apart, planes aPlane and bPlane bytes. A has as many rows as fill groups",
		"of 32, and b 32 columns; columns is 1 to 32. pairs is a positive multiple of 16. sum is scratch, [32][32].")
	c, step, rows := param("c"), param("cStep"), param("rows")
	SHLQ(Imm(2), step)
	takeTiles()
	Load(Param("sum"), tileC[0])
	down(tileC[0], stepC, tileC[1])
	Load(Param("a"), tileA[0])
	Load(Param("aStep"), stepA)
	SHLQ(Imm(1), stepA)
	Load(Param("bStep"), stepB)
	SHLQ(Imm(2), stepB)
	masks := [...]Op{K1, K2}
	MOVQ(address("columns"), RCX)
	ones := GP64()
	MOVQ(U32(1), ones)
	SHLQ(CL, ones)
	DECQ(ones)
	KMOVW(ones.As32(), masks[0])
	SHRQ(Imm(16), ones)
	KMOVW(ones.As32(), masks[1])

	add := func(label string, n GPVirtual) { // n rows of the block before
		from := GP64()
		MOVQ(tileC[0], from)
		Label(label)
		for v := range vectors {
			x := registers[v]
			VMOVUPS(part(Mem{Base: from}, v), x)
			VADDPS(part(Mem{Base: c}, v), x, masks[v], x)
			VMOVUPS(x, masks[v], part(Mem{Base: c}, v))
		}
		ADDQ(step, c)
		ADDQ(U32(uint32(rowBytes)), from)
		DECQ(n)
		JNZ(LabelRef(label))
	}
	set := func(label string) {
		setTiles("b", func(a GPVirtual) { planeProducts(label, "pairs", "aPlane", "b", "bPlane", a, nothing) })
	}
	set("first")
	JMP(LabelRef("store"))
	Comment("A block is added while the tiles are at the next one.")
	Label("rows")
	set("next")
	n := GP64()
	MOVQ(U32(2*tileRows), n)
	add("row", n)
	Label("store")
	storeTiles(2)
	SUBQ(Imm(2*tileRows), rows)
	JG(LabelRef("rows"))
	ADDQ(Imm(2*tileRows), rows)
	add("last", rows)
	TILERELEASE()
	done()
}

// planeProducts adds to four tiles of C the six products, for as many pairs as the
// parameter of that name says. A begins at the address in from. label is for loops.
// meanwhile emits what is done beside them, four times for 16 pairs.
func planeProducts(label, pairs, planeA, b, planeB string, from GPVirtual, meanwhile func()) {
	steps := param(pairs)
	SHRQ(Imm(4), steps)
	// The five small products, each with a plane of A or of B that the one before had not.
	lowerA := tilesOfA(func(r int) { SUBQ(address(planeA), tileA[r]) })
	higherB := tilesOfB(func() { ADDQ(address(planeB), tileB) })
	small := func(nextA, nextB func(int)) {
		for range 2 {
			phaseA(lowerA)
			meanwhile()
			phaseB(higherB)
			meanwhile()
		}
		phaseAB(nextA, nextB)
	}
	for i, a := range tileA {
		ADDQ(address(planeA), a) // to the third plane
		ADDQ(address(planeA), a)
		loadTileB(i)
		loadTileA(i)
	}
	DECQ(steps)
	JZ(LabelRef(label + "smallest"))
	Label(label + "small")
	small(tilesOfA(func(r int) { // the third plane of the next step, and the first one of B
		ADDQ(address(planeA), tileA[r])
		ADDQ(address(planeA), tileA[r])
		ADDQ(Imm(tileBytes), tileA[r])
	}), tilesOfB(func() {
		SUBQ(address(planeB), tileB)
		SUBQ(address(planeB), tileB)
		down(tileB, stepB, tileB)
	}))
	DECQ(steps)
	JNZ(LabelRef(label + "small"))
	Label(label + "smallest")
	small(tilesOfA(func(r int) { // the first planes of the first step, for the large products
		if r == 0 {
			MOVQ(from, tileA[0])
		} else {
			down(tileA[0], stepA, tileA[1])
		}
	}), tilesOfB(func() { Load(Param(b), tileB) }))
	tileSteps(label+"large", pairs)
}

// nothing is done meanwhile.
func nothing() {}

// A phase is the four products of the tiles that are loaded. There are no registers
// to load others into meanwhile, so products come in an order that is done with the
// tiles of A, of B, or of both one by one: next loads what follows, under the
// products that are left.
func phaseA(next func(r int)) {
	multiplyAwake(0, 0)
	multiplyAwake(0, 1)
	next(0)
	multiplyAwake(1, 0)
	multiplyAwake(1, 1)
	next(1)
}

func phaseB(next func(c int)) {
	multiplyAwake(0, 0)
	multiplyAwake(1, 0)
	next(0)
	multiplyAwake(0, 1)
	multiplyAwake(1, 1)
	next(1)
}

func phaseAB(nextA func(r int), nextB func(c int)) {
	multiplyAwake(0, 0)
	multiplyAwake(1, 0)
	nextB(0)
	multiplyAwake(0, 1)
	nextA(0)
	multiplyAwake(1, 1)
	nextB(1)
	nextA(1)
}

// multiplyAwake is multiplyTiles plus a dummy float32 add, which keeps the vector FMA unit
// from powering down. The next tile store would wait until it is up again, and neither
// tile products nor integer instructions keep it up.
func multiplyAwake(r, c int) {
	multiplyTiles(r, c)
	idle := registers[len(registers)-1]
	VADDPS(idle, idle, idle)
}

// tilesOfA and tilesOfB return what loads the tile of that number after a move to
// where it lies: each of A on its own, those of B together.
func tilesOfA(move func(r int)) func(r int) {
	return func(r int) {
		move(r)
		loadTileA(r)
	}
}

func tilesOfB(move func()) func(c int) {
	return func(c int) {
		if c == 0 {
			move()
		}
		loadTileB(c)
	}
}

// tileSteps adds the products of the tiles that are loaded, and of those that follow
// them.
func tileSteps(label, pairs string) {
	steps := param(pairs)
	SHRQ(Imm(4), steps)
	DECQ(steps)
	JZ(LabelRef(label + "end"))
	Label(label)
	phaseAB(tilesOfA(func(r int) { ADDQ(Imm(tileBytes), tileA[r]) }), tilesOfB(func() { down(tileB, stepB, tileB) }))
	DECQ(steps)
	JNZ(LabelRef(label))
	Label(label + "end")
	none := func(int) {}
	phaseAB(none, none)
}

// address returns where a parameter lies.
func address(name string) Mem {
	p, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return p.Addr
}

// planeWeights emits P = 2^(S - max), in planes of pairs.
func planeWeights() {
	arithmetic("planeWeights", "func(p *uint32, plane int, s *float32, pairs int, m, top, l, alpha *float32, scale float32)",
		"is weights for planes of P that lie plane bytes apart.")
	plane, piece := param("plane"), registers[9:11]
	cutConstant(registers[12])
	weighPairs(param("p"), func(dst GPVirtual, v int, x, y VecPhysical) {
		for i := range planes - 1 {
			cut(x, piece[0])
			cut(y, piece[1])
			pairUp(piece[0], piece[1], part(planeOf(dst, plane, i), v))
		}
		pairUp(x, y, part(planeOf(dst, plane, planes-1), v))
	})
}

// planeOf returns the address of plane i of 0 to 2.
func planeOf(base, plane GPVirtual, i int) Mem {
	if i == 0 {
		return Mem{Base: base}
	}
	return Mem{Base: base, Index: plane, Scale: uint8(i)}
}

// Registers of cut, set by cutConstant, and of split.
var upperHalf, half VecPhysical

func cutConstant(z VecPhysical) {
	upperHalf = z
	word(0xffff0000, upperHalf)
}

// split moves from x to piece what a bf16 can hold of it. Nothing of a NaN is lost:
// what the carry makes of it is taken from x, and leaves a NaN.
func split(x, piece VecPhysical) {
	VPADDD(half, x, piece)
	VPANDD(upperHalf, piece, piece)
	VSUBPS(piece, x, x)
}

// cut is split for one operand of a product, which may be cut off instead of rounded:
// that the other's planes have both signs is enough for the products left out.
func cut(x, piece VecPhysical) {
	VPANDD(upperHalf, x, piece)
	VSUBPS(piece, x, x)
}

// splitRows emits the packing of rows into planes.
func splitRows() {
	routine("splitRows", "func(dst *uint16, dstStep, plane int, src *float32, srcStep, n, rows int) bool",
		"sets rows of dst, dstStep elements apart, to the three planes, plane bytes apart, of n elements",
		"of rows of src, srcStep apart, and to 0 for those that are not below 2^58, or NaN. It reports whether there",
		"are none of these. n > 0, rows > 0.")
	dst, dstStep, plane := param("dst"), bytes16(param("dstStep")), param("plane")
	src, srcStep, rows := param("src"), bytes(param("srcStep")), param("rows")
	x, piece := registers[0:2], registers[2:4]
	limit, absolute, both := registers[4], registers[5], registers[8]
	half = registers[6]
	word(0x8000, half)
	cutConstant(registers[7])
	word(0x7fffffff, absolute)
	constant(wildFrom, limit)
	whole, some, all := K1, K2, K3 // all: the columns that no row has anything wild in
	tail := GP32()
	MOVQ(address("n"), RCX)
	ANDL(Imm(15), ECX)
	MOVL(U32(1), tail)
	SHLL(CL, tail)
	DECL(tail)
	KMOVW(tail, some)
	KXNORW(whole, whole, whole)
	KXNORW(all, all, all)

	load := func(from Mem, mask, wildless Op, x, piece VecPhysical) {
		VMOVUPS_Z(from, mask, x)
		VPANDD(absolute, x, piece)
		const lessThan = 1
		VCMPPS(Imm(lessThan), limit, piece, wildless)
		KANDW(wildless, all, all)
		VMOVAPS_Z(x, wildless, x)
	}
	sixteen := func(to, from GPVirtual, mask, wildless Op) {
		x, piece := x[0], piece[0]
		load(Mem{Base: from}, mask, wildless, x, piece)
		for i := range planes - 1 {
			split(x, piece)
			VPSRLD(Imm(16), piece, piece)
			VPMOVDW(piece, mask, planeOf(to, plane, i))
		}
		VPSRLD(Imm(16), x, x)
		VPMOVDW(x, mask, planeOf(to, plane, planes-1))
	}
	Label("row")
	to, from, n := GP64(), GP64(), GP64()
	MOVQ(dst, to)
	MOVQ(src, from)
	MOVQ(address("n"), n)
	SHRQ(Imm(5), n)
	JZ(LabelRef("half"))
	Label("columns")
	PREFETCHT0(Mem{Base: from, Index: srcStep, Scale: 8}) // the processor's own prefetching ends with a page
	PREFETCHT0(Mem{Base: from, Index: srcStep, Scale: 8, Disp: 64})
	for v := range x {
		load(Mem{Base: from, Disp: 64 * v}, whole, []Op{K4, K5}[v], x[v], piece[v])
	}
	for i := range planes {
		of := x // the last plane is what is left
		if i < planes-1 {
			of = piece
			for v := range x {
				split(x[v], piece[v])
			}
		}
		VCVTNE2PS2BF16(of[0], of[1], both)
		VMOVDQU32(both, planeOf(to, plane, i))
	}
	ADDQ(U32(128), from)
	ADDQ(Imm(64), to)
	DECQ(n)
	JNZ(LabelRef("columns"))
	Label("half")
	TESTQ(U32(16), address("n"))
	JZ(LabelRef("tail"))
	sixteen(to, from, whole, K4)
	ADDQ(Imm(64), from)
	ADDQ(Imm(32), to)
	Label("tail")
	KORTESTW(some, some)
	JZ(LabelRef("next"))
	sixteen(to, from, some, K4)
	Label("next")
	ADDQ(dstStep, dst)
	ADDQ(srcStep, src)
	DECQ(rows)
	JNZ(LabelRef("row"))
	storeWhether(all)
	done()
}

// storeWhether emits the result of a routine: whether all bits are set.
func storeWhether(all Op) {
	yes := GP8()
	KORTESTW(all, all)
	SETCS(yes)
	Store(yes, ReturnIndex(0))
}
