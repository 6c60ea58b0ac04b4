package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// AMX-BF16 multiplies tiles of 16 rows of 16 words. A word is a float32 of C, or a bf16 pair of A
// or B:
//
//	C[r][c] += Σ over w of A[r][w]·B[w][c]
//
// The product of two bf16 pairs is their dot product. A tile of A holds 16 rows of A as they are in
// memory. A tile of B holds 32 rows of B: the routine pairRows has packed every two rows into one
// row of pairs. Four tiles of C, two of A and two of B fill all eight registers.
//
// The Go runtime does not save tiles. No other code sees the tiles: each routine configures and
// releases them, and the runtime does not preempt a goroutine inside an assembly routine.

// amxForward emits the routines of forward passes, some of which serve other passes too. For the
// other steps of a forward pass, the kernels call routines for AVX512 and AVX512BF16.
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

func (g *generator) amxBackward() {
	g.tileSums()
	g.gradientPairs()
	g.shapedGradients()
	g.shapedDots()
	g.planeSums()
	g.planeGradients()
}

func (g *generator) amxDecode() {
	g.aheadScores()
	g.blockValues()
	g.addPlanes()
}

const (
	tileRows  = 16
	tileBytes = 64 // bytes of a tile row
)

// Registers that hold the addresses of tiles. The two tiles of A are one below the other, the two
// tiles of B side by side. The tiles of C are in two rows of two. avo cannot allocate these
// registers, because the generator encodes tile instructions itself, as data.
var (
	tileA = [2]GPPhysical{R8, R9}
	tileB = GPPhysical(R11)
	tileC = [2]GPPhysical{RDI, RBX}

	stepA, stepB, stepC = R10, R12, R13 // row strides in bytes
)

// takeTiles configures the tiles and sets the row strides of B and C to rowBytes.
func (g *generator) takeTiles() {
	LEAQ(g.tileShape(), tileB)
	g.configure()
}

// takeFewRows does the work of takeTiles. If rows is less than 16, the tiles of A and C have only this
// number of rows, so that loads and products take less time.
func (g *generator) takeFewRows(rows Op) {
	shape, z, n := AllocLocal(64), g.registers[0], GP64()
	LEAQ(g.tileShape(), tileB)
	VMOVDQU32(Mem{Base: tileB}, z)
	VMOVDQU32(z, shape)
	MOVQ(rows, n)
	CMPQ(n, Imm(tileRows))
	JGE(LabelRef("configure"))
	for _, tile := range []int{0, 1, 2, 3, 6, 7} {
		MOVB(n.As8(), shape.Offset(48+tile))
	}
	Label("configure")
	LEAQ(shape, tileB)
	g.configure()
}

// tileShape returns a table with palette 1, the bytes per row of each of the eight tiles, and the number
// of rows of each tile.
func (g *generator) tileShape() Mem {
	return g.table("tileShape", func() {
		for i, word := range [8]uint64{1, 0, 0x0040004000400040, 0x0040004000400040, 0, 0, 0x1010101010101010, 0} {
			DATA(8*i, U64(word))
		}
	})
}

func (g *generator) configure() {
	LDTILECFG(tileB)
	MOVQ(U32(uint32(g.rowBytes)), stepB)
	MOVQ(stepB, stepC)
}

// setTiles emits C = A B for four tiles of C and advances the address of A by 32 rows. b names the
// parameter that holds the address of B. products emits the tile products. The argument of products
// is the address of A.
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

// down adds 16 row strides to the address in from and stores the sum in to. step holds the stride.
func down(from, step, to Register) {
	LEAQ(Mem{Base: from, Index: step, Scale: 8}, to)
	LEAQ(Mem{Base: to, Index: step, Scale: 8}, to)
}

// tileProducts adds the products of A and B to the tiles of C. wide is the number of tiles of C
// side by side. pairs names the parameter that holds the number of bf16 pairs in a row of A. The
// emitted code advances the addresses of A and B.
func tileProducts(label, pairs string, wide int) {
	steps := param(pairs)
	SHRQ(Imm(4), steps)
	Label(label)
	productStep(wide)
	DECQ(steps)
	JNZ(LabelRef(label))
}

// productStep emits the products of the current tiles of A and B, and advances the addresses of A
// and B to the next tiles.
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

// Tiles of A are in registers 6 and 7, tiles of B in 4 and 5, and tiles of C in 0 to 3.
func loadTileA(r int)        { TILELOADD(0, tileA[r], stepA, 6+r) }
func loadTileB(c int)        { TILELOADD(c*tileBytes, tileB, stepB, 4+c) }
func multiplyTiles(r, c int) { TDPBF16PS(4+c, 6+r, 2*r+c) }

// multiplyAwake is multiplyTiles plus a dummy float32 addition, which keeps the vector FMA unit
// powered. Without this addition the unit powers down, and the next tile store waits until the unit
// is powered again. Neither tile products nor integer instructions keep the unit powered.
func (g *generator) multiplyAwake(r, c int) {
	if g.quads {
		TDPBUSD(4+c, 6+r, 2*r+c)
	} else {
		multiplyTiles(r, c)
	}
	idle := g.registers[len(g.registers)-1]
	VADDPS(idle, idle, idle)
}

// eachTile calls f for each tile of C. t is the number of the tile, r its row in the grid of tiles,
// and offset its byte offset in this row. wide is the number of tiles of C side by side.
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
