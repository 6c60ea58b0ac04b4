package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A float32 x is the sum of three bf16: x0 has the upper bits of x, x1 the upper bits of the
// remainder, and x2 the rest. A float32 product is thus a sum of nine bf16 products:
//
//	x y = x0 y0 + (x0 y1 + x1 y0) + (x0 y2 + x1 y1 + x2 y0) + ...
//
// The routines leave out the three smallest products. If both operands are split with rounding, the
// sum of these three is below half a unit in the last place of x0 y0. If one operand is split with
// truncation, the sum is below one unit.
//
// The routines first add up the five small products over all columns, because small sums have small
// rounding errors. In memory, an operand is three planes: bf16 matrices of x0, of x1 and of x2. The
// distance between planes is in bytes.

const (
	planes   = 3
	wildFrom = 0x1p58 // NaN and numbers with at least this magnitude are wild: splitRows sets them to 0
)

func (g *generator) planeScores() {
	g.routine("planeScores", "func(s *float32, k *uint16, step, kPlane int, q *uint32, qPlane, words, keys int, rowMax *float32)",
		"is scoresAMXBF16 for float32 operands. k and q are each stored as three bf16",
		"matrices, called planes. The sum of the three planes is the float32 matrix. Planes of k are",
		"kPlane bytes apart, and planes of q are qPlane bytes apart.")
	g.tileScores(func(a GPVirtual) { g.planeProducts("", "words", "kPlane", "q", "qPlane", a, nothing) }, nothing)
}

func (g *generator) planeValues() {
	g.arithmetic("planeValues", "func(o *float32, v *uint32, step, vPlane int, p *uint32, pPlane, pairs, vdim int, alpha, sum *float32)",
		"is addValuesAMXBF16 for float32 operands. v and p are each stored as three",
		"bf16 matrices, called planes. The sum of the three planes is the float32 matrix. Planes of v are",
		"vPlane bytes apart, and planes of p are pPlane bytes apart.")
	g.tileValues(func(a GPVirtual) { g.planeProducts("", "pairs", "vPlane", "p", "pPlane", a, nothing) })
}

// planeProducts adds the six products of planes to four tiles of C. pairs names the parameter that
// holds the number of bf16 pairs in a row of A. from holds the address of A. label prefixes the
// labels of loops. meanwhile emits other work for two positions in the loop of the small products.
// The code at each position runs twice for each 16 pairs.
func (g *generator) planeProducts(label, pairs, planeA, b, planeB string, from GPVirtual, meanwhile func()) {
	steps := param(pairs)
	SHRQ(Imm(4), steps)
	// The five small products of planes. Between two of them, either the plane of A or the plane of
	// B changes.
	lowerA := tilesOfA(func(r int) { SUBQ(address(planeA), tileA[r]) })
	higherB := tilesOfB(func() { ADDQ(address(planeB), tileB) })
	for i, a := range tileA {
		ADDQ(address(planeA), a) // to the third plane of A
		ADDQ(address(planeA), a)
		loadTileB(i)
		loadTileA(i)
	}
	Label(label + "small")
	turns := GP64()
	MOVQ(U32(2), turns)
	Label(label + "turn")
	g.phaseA(lowerA)
	meanwhile()
	g.phaseB(higherB)
	meanwhile()
	DECQ(turns)
	JNZ(LabelRef(label + "turn"))
	DECQ(steps)
	JZ(LabelRef(label + "smallest"))
	g.phaseAB(tilesOfA(func(r int) { // in the next step: the third plane of A and the first plane of B
		ADDQ(address(planeA), tileA[r])
		ADDQ(address(planeA), tileA[r])
		ADDQ(Imm(tileBytes), tileA[r])
	}), tilesOfB(func() {
		SUBQ(address(planeB), tileB)
		SUBQ(address(planeB), tileB)
		down(tileB, stepB, tileB)
	}))
	JMP(LabelRef(label + "small"))
	Label(label + "smallest")
	g.phaseAB(tilesOfA(func(r int) { // the first planes of the first step, for the large products
		if r == 0 {
			MOVQ(from, tileA[0])
		} else {
			down(tileA[0], stepA, tileA[1])
		}
	}), tilesOfB(func() { Load(Param(b), tileB) }))
	g.tileSteps(label+"large", pairs)
}

// nothing emits no interleaved work.
func nothing() {}

// phaseA, phaseB and phaseAB emit the four products of the loaded tiles. All tile registers are in
// use, so a new tile can load only after the last product that reads its register. The products of
// phaseA free the registers of A first. The products of phaseB free the registers of B first. In
// phaseAB, registers of B and A become free in turns. next, nextA and nextB load a tile into a
// freed register during the remaining products.
func (g *generator) phaseA(next func(r int)) {
	g.multiplyAwake(0, 0)
	g.multiplyAwake(0, 1)
	next(0)
	g.multiplyAwake(1, 0)
	g.multiplyAwake(1, 1)
	next(1)
}

func (g *generator) phaseB(next func(c int)) {
	g.multiplyAwake(0, 0)
	g.multiplyAwake(1, 0)
	next(0)
	g.multiplyAwake(0, 1)
	g.multiplyAwake(1, 1)
	next(1)
}

func (g *generator) phaseAB(nextA func(r int), nextB func(c int)) {
	g.multiplyAwake(0, 0)
	g.multiplyAwake(1, 0)
	nextB(0)
	g.multiplyAwake(0, 1)
	nextA(0)
	g.multiplyAwake(1, 1)
	nextB(1)
	nextA(1)
}

// tilesOfA and tilesOfB return a function that emits the load of a tile, given its number. move
// emits the change of the address before the load. Each tile of A has its own address. The two
// tiles of B share one address, so this address changes only once.
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

// tileSteps emits the products of the tiles that are already loaded, then the products of all later
// steps.
func (g *generator) tileSteps(label, pairs string) {
	steps := param(pairs)
	SHRQ(Imm(4), steps)
	DECQ(steps)
	JZ(LabelRef(label + "end"))
	Label(label)
	g.phaseAB(tilesOfA(func(r int) { ADDQ(Imm(tileBytes), tileA[r]) }), tilesOfB(func() { down(tileB, stepB, tileB) }))
	DECQ(steps)
	JNZ(LabelRef(label))
	Label(label + "end")
	none := func(int) {}
	g.phaseAB(none, none)
}
