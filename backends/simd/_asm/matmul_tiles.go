package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (g *generator) tileMatmul() {
	for vectors := 1; vectors <= 2; vectors++ {
		g.tilePanel(vectors)
	}
}

// tilePanel emits C += A B for a panel of bf16 pairs. For each vector of the panel, the routine
// multiplies two tiles of A at a time by a tile of B, or one tile if at most 16 rows of A are left.
func (g *generator) tilePanel(vectors int) {
	g.routine(fmt.Sprintf("multiply%d", vectors),
		"func(sums *float32, a, b *uint32, aRow, k, rows, add int, c *float32, cStep int, bias *float32, ahead *byte, fetch int)",
		"computes sums[r][x] = Σ over i < k of dot(a[r/16][i/16][r%16][i%16], b[i][x]), where a and b",
		"hold bf16 pairs. If add != 0, the routine adds the old sums[r][x] to the new value. Rows of sums",
		fmt.Sprintf("and b are contiguous and have %d columns. The routine rounds rows up to a multiple of 16, so a", tileRows*vectors),
		"and sums must have room for these rows.",
		"For every 32 rows and 16 of k, the routine prefetches fetch cache lines into L2, from address ahead",
		"on. It ignores aRow, c, cStep and bias. k is a multiple of 16. fetch, k, rows > 0.")
	g.takeFewRows(address("rows"))
	if vectors == 1 {
		MOVQ(U32(uint32(g.vectorBytes)), stepB)
		MOVQ(stepB, stepC)
	}
	p := &tilePanel{g, vectors, tileRows * tileBytes, param("a"), param("rows"), param("ahead")}
	MOVQ(U32(tileBytes), stepA)
	Load(Param("sums"), tileC[0])
	CMPQ(p.rows, Imm(tileRows))
	JLE(LabelRef("one"))
	p.block("two", 2)
	SUBQ(Imm(2*tileRows), p.rows)
	JLE(LabelRef("end"))
	CMPQ(p.rows, Imm(tileRows))
	JG(LabelRef("two"))
	p.block("one", 1)
	Label("end")
	TILERELEASE()
	g.done()
}

type tilePanel struct {
	*generator
	vectors        int
	stepOfA        uint32 // bytes between the tiles of A of two steps
	a, rows, ahead GPVirtual
}

// block emits the products of the next 16·high rows of A, where high is 1 or 2. It then advances
// past these rows of A.
func (p *tilePanel) block(name string, high int) {
	Label(name)
	for r := range high { // the tiles of 16 rows of A have k·64 bytes
		MOVQ(p.a, tileA[r])
		size := param("k")
		SHLQ(Imm(6), size)
		ADDQ(size, p.a)
	}
	if high == 2 {
		down(tileC[0], stepC, tileC[1])
	}
	Load(Param("b"), tileB)
	p.begin(name, high)
	phase := 0
	meanwhile := func() {
		phase++
		label := fmt.Sprint(name, "fetch", phase)
		lines := param("fetch")
		Label(label)
		PREFETCHT1(Mem{Base: p.ahead})
		ADDQ(Imm(line), p.ahead)
		DECQ(lines)
		JNZ(LabelRef(label))
	}
	steps := param("k")
	SHRQ(Imm(4), steps)
	if high == 2 && p.vectors == 2 {
		p.fourTiles(name, steps, meanwhile)
	} else {
		p.fewTiles(name, high, steps, meanwhile)
	}
	p.store(high)
	for range high {
		down(tileC[0], stepC, tileC[0])
	}
}

func (p *tilePanel) begin(name string, high int) {
	CMPQ(address("add"), Imm(0))
	JNE(LabelRef(name + "add"))
	p.zero(high)
	JMP(LabelRef(name + "begun"))
	Label(name + "add")
	p.each(high, func(r, c int) { TILELOADD(c*tileBytes, tileC[r], stepC, 2*r+c) })
	Label(name + "begun")
}

// fourTiles emits the loop over the inner dimension k for four tiles of C. The loop loads the tiles
// of the next step during the products of the current step. meanwhile emits the prefetches of a
// step.
func (p *tilePanel) fourTiles(name string, steps GPVirtual, meanwhile func()) {
	for i := range 2 {
		loadTileB(i)
		loadTileA(i)
	}
	DECQ(steps)
	JZ(LabelRef(name + "last"))
	Label(name + "step")
	meanwhile()
	p.phaseAB(tilesOfA(func(r int) { ADDQ(U32(p.stepOfA), tileA[r]) }), tilesOfB(func() { down(tileB, stepB, tileB) }))
	DECQ(steps)
	JNZ(LabelRef(name + "step"))
	Label(name + "last")
	meanwhile()
	none := func(int) {}
	p.phaseAB(none, none)
}

// fewTiles emits the loop over the inner dimension k for one or two tiles of C.
func (p *tilePanel) fewTiles(name string, high int, steps GPVirtual, meanwhile func()) {
	Label(name + "step")
	for c := range p.vectors {
		loadTileB(c)
	}
	for r := range high {
		loadTileA(r)
		for c := range p.vectors {
			p.multiplyAwake(r, c)
		}
		ADDQ(U32(p.stepOfA), tileA[r])
	}
	meanwhile()
	down(tileB, stepB, tileB)
	DECQ(steps)
	JNZ(LabelRef(name + "step"))
}
