package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// matmul emits the routines of internal/matmul. A register tile of C has up to tileRows rows of one
// to three vectors. The code broadcasts elements of A. It loads whole vectors of a panel of B, a
// block of columns.
func (g *generator) matmul() {
	for vectors := 1; vectors <= 3; vectors++ {
		g.multiplyPanel(vectors)
		g.widenPanel(vectors)
	}
	g.multiplyVector()
	if !g.avx512 {
		g.int8Routines()
	}
	g.transpose()
	for _, a := range []activation{
		{"None", false, "", nil, nil}, {"ReLU", false, "", g.relu, g.reluSlope},
		{"GELU", true, "", g.gelu, g.geluSlope}, {"Logistic", true, logisticNumbers, g.logistic, g.logisticSlope},
	} {
		g.finishRows(a)
		if a.slope != nil {
			g.slopes(a)
		}
	}
}

// tileRows returns the largest number of rows of a register tile. With this number, tiles with
// three vectors per row fit in the registers.
func (g *generator) tileRows() int {
	if g.avx512 {
		return 8
	}
	return 4
}

// A panel holds the operands of a routine that multiplies rows of A by a panel of B. A panel of B
// is a block of one to three vectors of columns, stored row by row.
type panel struct {
	vectors            int
	widened            bool // B holds bf16 pairs, A holds float32
	upper              VecPhysical
	sums, a, b         GPVirtual
	aRow, aRow3        GPVirtual // row stride of A in bytes, and three times it
	ahead              prefetcher
	a0, a4, at, n      GPVirtual // a0, a4: addresses of rows 0 and 4 of A in the tile; at: address of the current row of B; n: steps left
	lanesB, broadcasts []VecPhysical
}

// multiplyPanel emits C += A B for one panel of B. A and B hold float32 elements, or, with
// AVX512-BF16, bf16 pairs.
func (g *generator) multiplyPanel(vectors int) {
	if g.bf16 {
		g.panel(&panel{vectors: vectors}, "multiply", "a, b *uint32",
			"computes y[r][x] = Σ over i < k of dot(a[r*aRow+i], b[i][x]) for r < rows, where a and b hold bf16 pairs.")
		return
	}
	g.panel(&panel{vectors: vectors}, "multiply", "a, b *float32",
		"computes y[r][x] = Σ over i < k of a[r*aRow+i]·b[i][x] for r < rows.")
}

// widenPanel emits C += A B for a float32 A and a panel of bf16 pairs. A bf16 is the upper half of
// a float32, so one shift or mask widens it. The multiply-add does not round a product before
// adding it.
func (g *generator) widenPanel(vectors int) {
	g.panel(&panel{vectors: vectors, widened: true}, "widen", "a *float32, b *uint32",
		"computes y[r][x] = Σ over i < k of a[r*aRow+i]·h for r < rows, where h is element i%2 of the bf16 pair b[i/2][x].")
}

// panel emits one multiplication routine. does is the first sentence of the routine's
// documentation.
func (g *generator) panel(p *panel, name, operands, does string) {
	vectors := p.vectors
	g.arithmetic(fmt.Sprintf("%s%d", name, vectors),
		"func(sums *float32, "+operands+", aRow, k, rows, add int, c *float32, cStep int, bias *float32, ahead *byte, fetch int)", does,
		fmt.Sprintf("Rows of sums and b are contiguous and have %d columns.", vectors*g.vectorBytes/4),
		"",
		"If c is nil, the routine stores y in sums. If c is not nil, it stores y in c and leaves sums",
		"unchanged. Before the store, the routine adds these terms to y[r][x]:",
		"",
		"  - the old sums[r][x] if add&1 != 0",
		"  - bias[x] if c and bias are not nil",
		"  - the old c[r][x] if c is not nil and add&2 != 0",
		"",
		"Rows of c are cStep elements apart. The routine prefetches into L2 the memory from address ahead",
		"on, at most the size of b. The first tiles share these prefetches, and fetch is the number of",
		fmt.Sprintf("these tiles: 1, 2, 4, 8 or 16. A tile has %d rows of a. k, rows > 0.", g.tileRows()))
	p.sums, p.a, p.aRow = param("sums"), param("a"), bytes(param("aRow"))
	p.b = param("b")
	p.aRow3, p.a0, p.a4, p.at, p.n = GP64(), GP64(), GP64(), GP64(), GP64()
	most := g.tileRows()
	rest := g.registers[most*vectors:]
	p.lanesB, p.broadcasts = rest[:vectors], rest[vectors:min(vectors+4, len(rest))]
	if p.widened && g.avx512 {
		p.upper = g.registers[len(g.registers)-1]
		VMOVUPS(g.upperHalves(), p.upper)
	}
	LEAQ(Mem{Base: p.aRow, Index: p.aRow, Scale: 2}, p.aRow3)
	p.ahead = newPrefetcher()
	g.tiles(p, most)
	g.done()
}

// tiles emits the loop over tiles. The last tile may have fewer rows. Each number of rows has its
// own loop over k, the inner dimension. All tiles share the other code. When all memory at the
// address ahead is prefetched, the later prefetches all take the first line of the panel. These
// prefetches cost little, because this line is in the cache.
func (g *generator) tiles(p *panel, most int) {
	acc := make([][]VecPhysical, most)
	for r := range acc {
		acc[r] = g.registers[r*p.vectors : (r+1)*p.vectors]
	}
	Label("tile")
	clearSums(acc)
	g.beginTile(p, most)
	for rows := most; rows > 0; rows-- {
		name := fmt.Sprintf("rows%d", rows)
		if rows > 1 {
			CMPQ(address("rows"), Imm(uint64(rows)))
			JL(LabelRef(name + "fewer"))
		}
		g.steps(p, acc[:rows], name)
		if rows > 1 {
			JMP(LabelRef("add"))
			Label(name + "fewer")
		}
	}
	g.storeTile(p, acc)
	ADDQ(U32(uint32(most*p.vectors*g.vectorBytes)), p.sums)
	LEAQ(Mem{Base: p.a, Index: p.aRow, Scale: uint8(most)}, p.a)
	SUBQ(Imm(uint64(most)), address("rows"))
	JLE(LabelRef("end"))
	DECQ(address("fetch"))
	JNZ(LabelRef("tile"))
	p.ahead.stay(p.b)
	JMP(LabelRef("tile"))
	Label("end")
}

// beginTile emits the prefetch of the tile's rows of C and sets the operands of the tile's first
// step.
func (g *generator) beginTile(p *panel, most int) {
	c := param("c")
	TESTQ(c, c)
	JZ(LabelRef("fetched"))
	step, n, whole := bytes(param("cStep")), param("rows"), GP64()
	MOVQ(U32(uint32(most)), whole)
	CMPQ(n, whole)
	CMOVQGT(whole, n)
	Label("fetch")
	for at := 0; at < p.vectors*g.vectorBytes; at += line {
		PREFETCHT0(Mem{Base: c, Disp: at})
	}
	ADDQ(step, c)
	DECQ(n)
	JNZ(LabelRef("fetch"))
	Label("fetched")
	MOVQ(p.a, p.a0)
	if most > 4 {
		LEAQ(Mem{Base: p.a, Index: p.aRow, Scale: 4}, p.a4)
	}
	MOVQ(p.b, p.at)
	MOVQ(address("k"), p.n)
}

// storeTile emits the end of a tile. Depending on the arguments, the code adds the old sums, the
// bias and the old C. It stores the tile in C, or in sums if C is nil.
func (g *generator) storeTile(p *panel, acc [][]VecPhysical) {
	eachSum := func(next string, f func(r, v int, z VecPhysical)) {
		for r := range acc {
			if r > 0 { // the tile may have fewer rows
				CMPQ(address("rows"), Imm(uint64(r)))
				JLE(LabelRef(next))
			}
			for v, z := range acc[r] {
				f(r, v, z)
			}
		}
		Label(next)
	}
	Label("add")
	TESTQ(U32(1), address("add"))
	JZ(LabelRef("set"))
	eachSum("set", func(r, v int, z VecPhysical) { VADDPS(g.part(Mem{Base: p.sums}, r*p.vectors+v), z, z) })
	c, step := param("c"), bytes(param("cStep"))
	TESTQ(c, c)
	JNZ(LabelRef("last"))
	MOVQ(p.sums, c)
	MOVQ(U32(uint32(p.vectors*g.vectorBytes)), step)
	Label("last")
	row := rowsFrom(c, step, len(acc))
	CMPQ(address("c"), Imm(0))
	JEQ(LabelRef("store"))
	bias := param("bias")
	TESTQ(bias, bias)
	JZ(LabelRef("plain"))
	eachSum("plain", func(_, v int, z VecPhysical) { VADDPS(g.part(Mem{Base: bias}, v), z, z) })
	TESTQ(U32(2), address("add"))
	JZ(LabelRef("store"))
	eachSum("store", func(r, v int, z VecPhysical) { VADDPS(g.part(row(r), v), z, z) })
	eachSum("stored", func(r, v int, z VecPhysical) { VMOVUPS(z, g.part(row(r), v)) })
	CMPQ(address("c"), Imm(0))
	JEQ(LabelRef("next"))
	LEAQ(row(len(acc)), c)
	MOVQ(c, address("c"))
	Label("next")
}

// rowsFrom emits the address arithmetic for rows 0 to n of base and returns the addresses of these
// rows. n is at most 8.
func rowsFrom(base, step GPVirtual, n int) (row func(r int) Mem) {
	step3, base4 := GP64(), base
	LEAQ(Mem{Base: step, Index: step, Scale: 2}, step3)
	if n > 4 {
		base4 = GP64()
		LEAQ(Mem{Base: base, Index: step, Scale: 4}, base4)
	}
	return func(r int) Mem {
		if r <= 4 {
			return rowAt(base, step, step3, r)
		}
		return rowAt(base4, step, step3, r-4)
	}
}

// The largest numbers of multiply-adds in an iteration of the loop over k, in whole tiles and in tails.
const turnProducts, tailProducts = 60, 40

// steps emits the loop over the inner dimension k. A step multiplies by one stored row of B, which
// holds float32 elements or bf16 pairs.
func (g *generator) steps(p *panel, acc [][]VecPhysical, label string) {
	halves, turn := 1, unroll
	if p.widened {
		halves = 2
		if !g.avx512 {
			turn = 2
		}
	}
	products := halves * len(acc) * p.vectors
	for turn*products > turnProducts || turn > 2 && turn*products > tailProducts && len(acc) < g.tileRows() {
		turn /= 2
	}
	if turn > 1 {
		SUBQ(Imm(uint64(turn*halves)), p.n)
		JL(LabelRef(label + "rest"))
		Label(label)
		for i := range turn {
			g.prefetchStep(p, len(acc), i)
			for half := range halves {
				g.addStep(p, acc, i, half, halves)
			}
		}
		g.advanceSteps(p, len(acc), turn, halves)
		SUBQ(Imm(uint64(turn*halves)), p.n)
		JGE(LabelRef(label))
		Label(label + "rest")
		ADDQ(Imm(uint64(turn*halves)), p.n)
		JZ(LabelRef(label + "end"))
	}
	Label(label + "one")
	g.prefetchStep(p, len(acc), 0)
	for half := range halves {
		if half > 0 { // k may be odd, so the last pair may have one element only
			DECQ(p.n)
			JZ(LabelRef(label + "end"))
		}
		g.addStep(p, acc, 0, half, halves)
	}
	g.advanceSteps(p, len(acc), 1, halves)
	DECQ(p.n)
	JNZ(LabelRef(label + "one"))
	Label(label + "end")
}

// linesBefore returns the number of the panel's cache lines that begin before the given step.
func (g *generator) linesBefore(p *panel, step int) int {
	return (step*p.vectors*g.vectorBytes + line - 1) / line
}

// prefetchStep emits one prefetch for each cache line of the panel that begins in step i. A tile
// with fewer rows than the others is the last tile, so it prefetches all lines that remain.
func (g *generator) prefetchStep(p *panel, rows, i int) {
	for n := g.linesBefore(p, i); n < g.linesBefore(p, i+1); n++ {
		if rows == g.tileRows() {
			PREFETCHT1(p.ahead.at(n))
		} else {
			PREFETCHT1(Mem{Base: p.ahead.next, Disp: n * line})
		}
	}
}

func (g *generator) advanceSteps(p *panel, rows, steps, halves int) {
	ADDQ(U32(uint32(steps*halves*4)), p.a0)
	if rows > 4 {
		ADDQ(U32(uint32(steps*halves*4)), p.a4)
	}
	ADDQ(U32(uint32(steps*p.vectors*g.vectorBytes)), p.at)
	if rows == g.tileRows() {
		p.ahead.advance(g.linesBefore(p, steps))
	} else {
		ADDQ(U32(uint32(steps*p.vectors*g.vectorBytes)), p.ahead.next)
	}
}

// A prefetcher prefetches memory at the address ahead while a tile reads the panel. There is one
// prefetch for each cache line of the panel. Several prefetches may fetch the same line.
type prefetcher struct {
	next  GPVirtual    // the address of the next prefetch
	steps [3]GPVirtual // bytes by which next advances while the tile reads 1, 3 and 5 lines of the panel
}

// newPrefetcher emits the strides that spread the prefetches over the first tiles. The parameter
// fetch is the number of these tiles.
func newPrefetcher() prefetcher {
	f := prefetcher{next: param("ahead"), steps: [3]GPVirtual{GP64(), GP64(), GP64()}}
	one, three, five := f.steps[0], f.steps[1], f.steps[2]
	BSFQ(address("fetch"), RCX)
	MOVQ(U32(line), one)
	SHRQ(CL, one)
	LEAQ(Mem{Base: one, Index: one, Scale: 2}, three)
	LEAQ(Mem{Base: one, Index: one, Scale: 4}, five)
	return f
}

// at returns the address to prefetch when the tile reads line n of the panel, counted from the
// current line. n is 0 to 5.
func (f prefetcher) at(n int) Mem {
	m := Mem{Base: f.next}
	switch n {
	case 0:
	case 1, 2, 4:
		m.Index, m.Scale = f.steps[0], uint8(n)
	case 3, 5:
		m.Index, m.Scale = f.steps[n/2], 1
	default:
		panic(fmt.Sprintf("no address of line %d", n))
	}
	return m
}

// advance advances next by the bytes for n lines of the panel. n is 1 to 4, or 6.
func (f prefetcher) advance(n int) {
	if n%3 == 0 {
		advance(f.next, f.steps[1], n/3)
	} else {
		advance(f.next, f.steps[0], n)
	}
}

// stay sets next to the first line of the panel, which is in the cache, and all strides to 0.
func (f prefetcher) stay(panel GPVirtual) {
	MOVQ(panel, f.next)
	for _, r := range f.steps {
		XORQ(r, r)
	}
}

// loadB loads a row of B. If B holds bf16 pairs to widen, it loads one half of each pair: the lower
// half if half is 0.
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

// upperHalves returns the mask of the upper half of each pair.
func (g *generator) upperHalves() Mem { return g.everyLane("upperHalves", []uint32{0xffff0000}) }

// addStep adds the products of step i: one element of each row of A times one row of B.
func (g *generator) addStep(p *panel, acc [][]VecPhysical, i, half, halves int) {
	g.loadB(p, i*p.vectors*g.vectorBytes, half)
	for r := range acc {
		x := p.broadcasts[r%len(p.broadcasts)]
		VBROADCASTSS(rowAt([]GPVirtual{p.a0, p.a4}[r/4], p.aRow, p.aRow3, r%4).Offset((i*halves+half)*4), x)
		for v, z := range p.lanesB {
			g.multiplyAdd(x, z, acc[r][v])
		}
	}
}
