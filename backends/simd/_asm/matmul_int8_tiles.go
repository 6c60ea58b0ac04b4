package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// tileDots emits the product of A's rows and a panel of B in 8 bits, with AMX. A block is 32 rows of A,
// or at most 16. Its sums go to memory, and a loop over rows scales them.
func (g *generator) tileDots() {
	p := &int8Panel{generator: g, most: 2 * tileRows, vectors: 2}
	p.begin(quadDots + ". The quads of a are in tiles, a[r/16][i/16][r%16][i%16], with aRow = k. k is a multiple of 16")
	g.takeFewRows(address("rows"))
	MOVQ(U32(tileBytes), stepA)
	p.b = param("b")
	t := &tilePanel{generator: g, vectors: p.vectors, stepOfA: tileRows * tileBytes}
	Label("tile")
	Load(Param("a"), tileA[0])
	p.nextRows(tileA[0], tileA[1])
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
	p.nextRows(tileA[0], tileA[0])
	p.nextRows(tileA[0], tileA[0])
	MOVQ(tileA[0], address("a"))
	p.nextTile()
	TILERELEASE()
	g.done()
}

// nextRows sets to to the address of the 16 rows of A after the rows at from.
func (p *int8Panel) nextRows(from, to GPPhysical) {
	size := param("k")
	SHLQ(Imm(6), size)
	ADDQ(from, size)
	MOVQ(size, to)
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
