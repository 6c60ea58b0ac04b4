package main

import (
	"fmt"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The routines of internal/matmul. A tile of C is in registers: up to tileRows rows, which
// are broadcast from A one element at a time, of one to three vectors of a panel of B.
func (g *generator) matmul() {
	for vectors := 1; vectors <= 3; vectors++ {
		g.multiplyPanel(vectors)
		g.widenPanel(vectors)
	}
	g.transpose()
	for _, a := range []activation{
		{"None", false, nil, nil}, {"ReLU", false, g.relu, g.reluSlope},
		{"GELU", true, g.gelu, g.geluSlope}, {"GELUTanh", true, g.geluTanh, g.geluTanhSlope},
	} {
		g.finishRows(a)
		if a.slope != nil {
			g.slopes(a)
		}
	}
}

// tileRows is how many rows of three vectors the accumulators hold.
func (g *generator) tileRows() int {
	if g.avx512 {
		return 8
	}
	return 4
}

// A panel is the routine that multiplies rows of A with a panel: where things are.
type panel struct {
	vectors            int
	widened            bool // B is pairs of bf16, A float32
	upper              VecPhysical
	sums, a, b, k      GPVirtual
	aRow, aRow3        GPVirtual // bytes
	rows, ahead        GPVirtual
	a0, a4, at, n      GPVirtual // of the tile at hand
	lanesB, broadcasts []VecPhysical
}

// multiplyPanel emits C += A B for a panel of float32. With those of AVX512-BF16, A and B are
// pairs of bf16.
func (g *generator) multiplyPanel(vectors int) {
	if g.bf16 {
		g.panel(&panel{vectors: vectors}, "multiply", "a, b *uint32",
			"sets sums[r][c], or adds to it if add has bit 0, the sum over i of the products of the pairs a[r*aRow + i] and b[i][c].")
		return
	}
	g.panel(&panel{vectors: vectors}, "multiply", "a, b *float32",
		"sets sums[r][c], or adds to it if add has bit 0, the sum over i of a[r*aRow + i] b[i][c].")
}

// widenPanel emits C += A B for a panel of pairs of bf16, each of which is the upper half of
// a float32. A product is exact before it is added.
func (g *generator) widenPanel(vectors int) {
	g.panel(&panel{vectors: vectors, widened: true}, "widen", "a *float32, b *uint32",
		"sets sums[r][c], or adds to it if add has bit 0, the sum over i of a[r*aRow + i] and the half i%2 of the pair b[i/2][c].")
}

// panel emits a routine that multiplies.
func (g *generator) panel(p *panel, name, operands, does string) {
	fetches, vectors := g.fetches(), p.vectors
	g.arithmetic(fmt.Sprintf("%s%d", name, vectors),
		"func(sums *float32, "+operands+", aRow, k, rows, add int, c *float32, cStep int, bias *float32, ahead *byte, fetch int)", does,
		fmt.Sprintf("Rows of sums and b have %d vectors. If c is not nil, what would be sums goes to rows of c, cStep", vectors),
		"elements apart, and bias, if that is not nil, is added, and what c has if add has bit 1. Meanwhile it brings memory from ahead on, as much as b has, into the second-level cache,",
		fmt.Sprintf("with the first fetch tiles of its rows: %v of them. k > 0.", anyOf(fetches)))
	p.sums, p.a, p.aRow = param("sums"), param("a"), bytes(param("aRow"))
	p.b, p.k, p.rows, p.ahead = param("b"), param("k"), param("rows"), param("ahead")
	p.aRow3, p.a0, p.a4, p.at, p.n = GP64(), GP64(), GP64(), GP64(), GP64()
	most := g.tileRows()
	used := most * vectors
	p.lanesB, p.broadcasts = g.registers[used:used+vectors], g.registers[used+vectors:]
	p.broadcasts = p.broadcasts[:min(4, len(p.broadcasts))]
	if p.widened && g.avx512 {
		p.upper = g.registers[len(g.registers)-1]
		VMOVUPS(g.upperHalves(), p.upper)
	}
	LEAQ(Mem{Base: p.aRow, Index: p.aRow, Scale: 2}, p.aRow3)
	g.chooseFetch(fetches)
	for _, n := range fetches {
		g.tiles(p, most, fetchLabel(n), g.fetchBytes(vectors, n), fetchLabel(fetches[len(fetches)-1]))
	}
	Label("tails")
	for rows := most - 1; rows > 0; rows-- {
		name := fmt.Sprintf("tail%d", rows)
		CMPQ(p.rows, Imm(uint64(rows)))
		JNE(LabelRef(name + "done"))
		g.tile(p, rows, name, vectors*g.vectorBytes)
		Label(name + "done")
	}
	g.done()
}

// fetches are with how many tiles the next part of B may be prefetched.
func (g *generator) fetches() []int {
	if g.avx512 {
		return []int{1, 3, 12}
	}
	return []int{1, 2, 4, 8, 16}
}

// anyOf returns numbers as text, such as "1, 2 or 4".
func anyOf(n []int) string {
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(n), " ", ", "), "[]")
	last := strings.LastIndex(text, ", ")
	return text[:last] + " or" + text[last+1:]
}

func fetchLabel(tiles int) string { return fmt.Sprintf("fetch%d", tiles) }

// chooseFetch emits the jump to the tiles that fetch names.
func (g *generator) chooseFetch(fetches []int) {
	if g.avx512 {
		CMPQ(address("fetch"), Imm(3))
		JG(LabelRef(fetchLabel(12)))
		JE(LabelRef(fetchLabel(3)))
		return
	}
	for _, n := range fetches[1:] {
		CMPQ(address("fetch"), Imm(uint64(n)))
		JE(LabelRef(fetchLabel(n)))
	}
}

// fetchBytes returns how many bytes a step prefetches.
func (g *generator) fetchBytes(vectors, tiles int) int {
	if g.avx512 && tiles > 1 { // as a panel of three vectors needs it
		vectors = 3
	}
	return vectors * g.vectorBytes / tiles
}

// tiles emits whole tiles, which prefetch so many bytes with each step. After the tiles that
// do, it goes on with the slowest, which read the panel itself once more: what is in the cache
// costs little.
func (g *generator) tiles(p *panel, rows int, name string, ahead int, slowest string) {
	Label(name)
	CMPQ(p.rows, Imm(uint64(rows)))
	JL(LabelRef("tails"))
	g.tile(p, rows, name, ahead)
	ADDQ(U32(uint32(rows*p.vectors*g.vectorBytes)), p.sums)
	for range rows {
		ADDQ(p.aRow, p.a)
	}
	SUBQ(Imm(uint64(rows)), p.rows)
	DECQ(address("fetch"))
	JNZ(LabelRef(name))
	MOVQ(p.b, p.ahead)
	JMP(LabelRef(slowest))
}

// tile emits the products of one tile.
func (g *generator) tile(p *panel, rows int, name string, ahead int) {
	acc := make([][]VecPhysical, rows)
	for r := range acc {
		acc[r] = g.registers[r*p.vectors : (r+1)*p.vectors]
	}
	clearSums(acc)
	g.fetchTile(p, rows, name)
	MOVQ(p.a, p.a0)
	if rows > 4 {
		LEAQ(Mem{Base: p.a, Index: p.aRow, Scale: 4}, p.a4)
	}
	MOVQ(p.b, p.at)
	MOVQ(p.k, p.n)
	g.steps(p, acc, name+"step", ahead)
	g.storeTile(p, acc, name)
}

// fetchTile emits the prefetching of the rows of C that the tile goes to.
func (g *generator) fetchTile(p *panel, rows int, name string) {
	c := param("c")
	TESTQ(c, c)
	JZ(LabelRef(name + "fetched"))
	step := bytes(param("cStep"))
	for range rows {
		for at := 0; at < p.vectors*g.vectorBytes; at += line {
			PREFETCHT0(Mem{Base: c, Disp: at})
		}
		ADDQ(step, c)
	}
	Label(name + "fetched")
}

// storeTile emits what becomes of the sums of a tile.
func (g *generator) storeTile(p *panel, acc [][]VecPhysical, name string) {
	eachSum := func(f func(z VecPhysical, m Mem)) {
		for r := range acc {
			for v, z := range acc[r] {
				f(z, g.part(Mem{Base: p.sums}, r*p.vectors+v))
			}
		}
	}
	add := GP64()
	MOVQ(address("add"), add)
	TESTQ(U32(1), add)
	JZ(LabelRef(name + "set"))
	eachSum(func(z VecPhysical, m Mem) { VADDPS(m, z, z) })
	Label(name + "set")
	c, bias := param("c"), param("bias")
	TESTQ(c, c)
	JNZ(LabelRef(name + "last"))
	eachSum(func(z VecPhysical, m Mem) { VMOVUPS(z, m) })
	JMP(LabelRef(name + "stored"))
	Label(name + "last")
	TESTQ(bias, bias)
	JZ(LabelRef(name + "plain"))
	for v, z := range p.lanesB {
		VMOVUPS(g.part(Mem{Base: bias}, v), z)
		for r := range acc {
			VADDPS(z, acc[r][v], acc[r][v])
		}
	}
	Label(name + "plain")
	step := bytes(param("cStep"))
	TESTQ(U32(2), add)
	JZ(LabelRef(name + "anew"))
	into := GP64()
	MOVQ(c, into)
	for r := range acc {
		for v, z := range acc[r] {
			VADDPS(g.part(Mem{Base: into}, v), z, z)
		}
		ADDQ(step, into)
	}
	Label(name + "anew")
	for r := range acc {
		for v, z := range acc[r] {
			VMOVUPS(z, g.part(Mem{Base: c}, v))
		}
		ADDQ(step, c)
	}
	MOVQ(c, address("c"))
	Label(name + "stored")
}

// steps emits the loop over K. Each step prefetches so many bytes.
func (g *generator) steps(p *panel, acc [][]VecPhysical, label string, ahead int) {
	rowBytes, halves := p.vectors*g.vectorBytes, 1
	if p.widened {
		halves = 2
		SHRQ(Imm(1), p.n)
	}
	unrolled(label, p.n, func(i int) {
		for at := (i*ahead + line - 1) / line * line; at < (i+1)*ahead; at += line {
			PREFETCHT1(Mem{Base: p.ahead, Disp: at})
		}
		for half := range halves {
			g.loadB(p, i*rowBytes, half)
			g.addStep(p, acc, (i*halves+half)*4)
		}
	}, func(steps int) {
		ADDQ(U32(uint32(steps*halves*4)), p.a0)
		if len(acc) > 4 {
			ADDQ(U32(uint32(steps*halves*4)), p.a4)
		}
		ADDQ(U32(uint32(steps*rowBytes)), p.at)
		ADDQ(U32(uint32(steps*ahead)), p.ahead)
	})
	if !p.widened {
		return
	}
	TESTQ(U32(1), p.k)
	JZ(LabelRef(label + "even"))
	g.loadB(p, 0, 0)
	g.addStep(p, acc, 0)
	Label(label + "even")
}

// loadB loads a row of B, or of its pairs the lower half or the upper one.
func (g *generator) loadB(p *panel, offset, half int) {
	for v, z := range p.lanesB {
		m := g.part(Mem{Base: p.at, Disp: offset}, v)
		switch {
		case !p.widened:
			VMOVUPS(m, z)
		case half == 0 && g.avx512:
			VPSLLD(Imm(16), m, z)
		case half == 0:
			VMOVDQU(m, z)
			VPSLLD(Imm(16), z, z)
		case g.avx512:
			VPANDD(m, p.upper, z)
		default:
			VMOVUPS(m, z)
			VANDPS(g.upperHalves(), z, z)
		}
	}
}

// upperHalves returns what selects the upper half of each pair.
func (g *generator) upperHalves() Mem { return g.everyLane("upperHalves", []uint32{0xffff0000}) }

// addStep adds the products of the row of B that is loaded and an element of each row of A.
func (g *generator) addStep(p *panel, acc [][]VecPhysical, offset int) {
	for r := range acc {
		x := p.broadcasts[r%len(p.broadcasts)]
		VBROADCASTSS(rowAt([]GPVirtual{p.a0, p.a4}[r/4], p.aRow, p.aRow3, r%4).Offset(offset), x)
		for v, z := range p.lanesB {
			g.multiplyAdd(x, z, acc[r][v])
		}
	}
}
