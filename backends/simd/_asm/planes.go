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

// planeScores emits S = K Qᵀ.
func (g *generator) planeScores() {
	g.routine("planeScores", "func(s *float32, k *uint16, step, kPlane int, q *uint32, qPlane, words, keys int, top *float32)",
		"is scores for planes of K and Q that lie kPlane and qPlane bytes apart.")
	g.tileScores(func(a GPVirtual) { g.planeProducts("", "words", "kPlane", "q", "qPlane", a, nothing) }, nothing)
}

// planeValues emits Oᵀ = alpha Oᵀ + Vᵀ P.
func (g *generator) planeValues() {
	g.arithmetic("planeValues", "func(o *float32, v *uint32, step, vPlane int, p *uint32, pPlane, pairs, vdim int, alpha, sum *float32)",
		"is addValues for planes of V and P that lie vPlane and pPlane bytes apart.")
	g.tileValues(func(a GPVirtual) { g.planeProducts("", "pairs", "vPlane", "p", "pPlane", a, nothing) })
}

// planeProducts adds to four tiles of C the six products, for as many pairs as the
// parameter of that name says. A begins at the address in from. label is for loops.
// meanwhile emits the work beside them, which is done four times for 16 pairs.
func (g *generator) planeProducts(label, pairs, planeA, b, planeB string, from GPVirtual, meanwhile func()) {
	steps := param(pairs)
	SHRQ(Imm(4), steps)
	// The five small products, each with a plane of A or of B that the one before had not.
	lowerA := tilesOfA(func(r int) { SUBQ(address(planeA), tileA[r]) })
	higherB := tilesOfB(func() { ADDQ(address(planeB), tileB) })
	for i, a := range tileA {
		ADDQ(address(planeA), a) // to the third plane
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
	g.phaseAB(tilesOfA(func(r int) { // the third plane of the next step, and the first one of B
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

// nothing is done meanwhile.
func nothing() {}

// A phase is the four products of the tiles that are loaded. There are no registers
// to load others into meanwhile, so products come in an order that is done with the
// tiles of A, of B, or of both one by one: next loads what follows, under the
// products that are left.
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
