package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

// tileDots emits the product of A's rows and a panel of B in 8 bits, with AMX. A block is 32 rows of A,
// or at most 16. Its sums go to memory, and a loop over rows scales them.
func (g *generator) tileDots() {
	p := &int8Panel{generator: g, most: 2 * tileRows, vectors: 2}
	p.begin(quadDots + ". The routine reads whole tiles of 16 rows of a. k is a multiple of 16")
	g.takeTiles()
	Load(Param("aRow"), stepA)
	SHLQ(Imm(2), stepA)
	p.b = param("b")
	t := &tilePanel{generator: g, vectors: p.vectors, stepOfA: tileBytes}
	Label("tile")
	Load(Param("a"), tileA[0])
	down(tileA[0], stepA, tileA[1])
	Load(Param("sums"), tileC[0])
	down(tileC[0], stepC, tileC[1])
	LEAQ(Mem{Base: p.b, Disp: 2 * g.rowBytes}, tileB)
	steps := param("k")
	SHRQ(Imm(4), steps)
	CMPQ(address("rows"), Imm(tileRows))
	JLE(LabelRef("one"))
	t.zero(2)
	t.fourTiles("two", steps, fetchTiles)
	t.store(2)
	JMP(LabelRef("sums"))
	Label("one")
	t.zero(1)
	t.fewTiles("few", 1, steps, fetchTiles)
	t.store(1)
	Label("sums")
	p.scaleRows(param("sums"), true)
	Load(Param("a"), tileA[0])
	down(tileA[0], stepA, tileA[0])
	down(tileA[0], stepA, tileA[0])
	MOVQ(tileA[0], address("a"))
	p.nextTile()
	TILERELEASE()
	g.done()
}

// fetchTiles emits the prefetch of a later step's tiles of B.
func fetchTiles() {
	for at := 0; at < 2*tileRows*tileBytes; at += line {
		PREFETCHT0(Mem{Base: tileB, Disp: tilesAhead + at})
	}
}

const tilesAhead = 4096 // bytes between a load of B and its prefetch

// each calls f for each tile of C in the given number of rows of tiles.
func (p *tilePanel) each(high int, f func(r, c int)) {
	for r := range high {
		for c := range p.vectors {
			f(r, c)
		}
	}
}

func (p *tilePanel) zero(high int) { p.each(high, func(r, c int) { TILEZERO(2*r + c) }) }

func (p *tilePanel) store(high int) {
	p.each(high, func(r, c int) { TILESTORED(2*r+c, c*tileBytes, tileC[r], stepC) })
}
