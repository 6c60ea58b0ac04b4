package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The products of AMX-BF16 are of tiles: 16 rows of 16 words each. A word is a
// float32 of C, or a pair of bf16 of A or B, and
//
//	C[r][c] += sum over w of A[r][w]*B[w][c]
//
// so A is 16 rows as they lie, and B is 16 pairs of rows, as pairRows packs them.
// Four tiles of C, two of A and two of B are all eight registers.
//
// A tile is no state that Go knows. Each routine sets the tiles up and gives them
// back, and as no goroutine is stopped inside a routine, nobody else sees them.

// amxForward emits the routines of forward passes, and what others share with these. For all
// else the kernels take those of AVX512 and AVX512BF16.
func (g *generator) amxForward() {
	g.scoresOfTiles()
	g.seenScoresOfTiles()
	g.shapedScores()
	g.valuesOfTiles()
	g.weightPairs()
	g.dropPairs()
	g.finite()
	g.tilePeak()
	g.planeScores()
	g.planeValues()
	g.planeWeights()
	g.planePairs()
	g.splitRows()
}

// amxBackward emits those of backward passes.
func (g *generator) amxBackward() {
	g.tileSums()
	g.gradientPairs()
	g.shapedGradients()
	g.shapedDots()
	g.planeSums()
	g.planeGradients()
}

// amxDecode emits those of decode.
func (g *generator) amxDecode() {
	g.aheadScores()
	g.blockValues()
	g.addPlanes()
}

const (
	tileRows  = 16
	tileBytes = 64 // of a row
)

// Where tiles lie. Two of A or C are one below the other, two of B or C side by
// side. The registers are fixed, since the instructions on them are data.
var (
	tileA = [2]GPPhysical{R8, R9}
	tileB = GPPhysical(R11)
	tileC = [2]GPPhysical{RDI, RBX}

	stepA, stepB, stepC = R10, R12, R13 // bytes from row to row
)

// takeTiles sets the tiles up, and the steps of B and C to rows of lanes.
func (g *generator) takeTiles() {
	// Palette 1, the bytes of a row of each of eight tiles, their rows.
	shape := g.table("tileShape", func() {
		for i, word := range [8]uint64{1, 0, 0x0040004000400040, 0x0040004000400040, 0, 0, 0x1010101010101010, 0} {
			DATA(8*i, U64(word))
		}
	})
	LEAQ(shape, tileB)
	LDTILECFG(tileB)
	MOVQ(U32(uint32(g.rowBytes)), stepB)
	MOVQ(stepB, stepC)
}

// setTiles emits C = A B for four tiles of C, with B from the parameter of that
// name, and moves A to the rows below. products gets the address of A.
func setTiles(b string, products func(a GPVirtual)) {
	a := GP64()
	MOVQ(tileA[0], a)
	down(tileA[0], stepA, tileA[1])
	Load(Param(b), tileB)
	for t := range 4 {
		TILEZERO(t)
	}
	products(a)
	down(a, stepA, tileA[0])
	down(tileA[0], stepA, tileA[0])
}

// down sets to to the address 16 rows after from.
func down(from, step, to Register) {
	LEAQ(Mem{Base: from, Index: step, Scale: 8}, to)
	LEAQ(Mem{Base: to, Index: step, Scale: 8}, to)
}

// tileProducts adds to the tiles of C, so many side by side, the products of as
// many pairs as the parameter of that name says. It moves the tiles of A and B on.
func tileProducts(label, pairs string, wide int) {
	steps := param(pairs)
	SHRQ(Imm(4), steps)
	Label(label)
	productStep(wide)
	DECQ(steps)
	JNZ(LabelRef(label))
}

// productStep emits a step of the products, and the way to the next one.
func productStep(wide int) {
	for c := range wide {
		loadTileB(c)
	}
	for r := range tileA {
		loadTileA(r)
		for c := range wide {
			multiplyTiles(r, c)
		}
	}
	for _, a := range tileA {
		ADDQ(Imm(tileBytes), a)
	}
	down(tileB, stepB, tileB)
}

// The tiles of A lie in registers 6 and 7, those of B in 4 and 5, those of C in the rest.
func loadTileA(r int)        { TILELOADD(0, tileA[r], stepA, 6+r) }
func loadTileB(c int)        { TILELOADD(c*tileBytes, tileB, stepB, 4+c) }
func multiplyTiles(r, c int) { TDPBF16PS(4+c, 6+r, 2*r+c) }

// multiplyAwake is multiplyTiles plus a dummy float32 add, which keeps the vector FMA unit
// from powering down. The next tile store would wait until it is up again, and neither
// tile products nor integer instructions keep it up.
func (g *generator) multiplyAwake(r, c int) {
	multiplyTiles(r, c)
	idle := g.registers[len(g.registers)-1]
	VADDPS(idle, idle, idle)
}

// eachTile calls f for the tiles of C: the number, the row, the offset.
func eachTile(wide int, f func(t, r, offset int)) {
	for r := range tileC {
		for c := range wide {
			f(2*r+c, r, c*tileBytes)
		}
	}
}

func storeTiles(wide int) {
	eachTile(wide, func(t, r, offset int) { TILESTORED(t, offset, tileC[r], stepC) })
}
