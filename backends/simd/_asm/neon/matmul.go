package main

import "fmt"

// matmul writes the routines of internal/matmul. A register tile of C has six rows and 16 columns,
// in the vectors that products.go describes. The code loads four elements of each row of A at a
// time. It loads half a row of B at a time, or one vector if B holds bf16 pairs. The last panel of
// B may have eight columns.
func (g *generator) matmul() {
	for vectors := 1; vectors <= 2; vectors++ {
		g.multiplyPanel(vectors, false)
		g.multiplyPanel(vectors, true)
	}
	g.transposeEights()
	for _, a := range []activation{
		{"None", "", nil, nil, nil}, {"ReLU", "", g.constantsOfReLU, g.relu, g.reluSlope},
		{"GELU", "", g.constantsOfGELU, g.gelu, g.geluSlope},
		{"Logistic", " numbers is [9][16]: each number of the activation in all lanes of a vector.", g.constantsOfLogistic, g.logistic, g.logisticSlope},
	} {
		g.finishRows(a)
		if a.slope != nil {
			g.slopes(a)
		}
	}
	g.int8Routines()
}

// A panel holds the operands of a routine that multiplies rows of A by a panel of B. A panel of B
// is a block of 8 or 16 columns, stored row by row.
type panel struct {
	*generator
	vectors                           int // vectors of eight columns
	pairs                             bool
	sums, a, b, aRow, k, rows         reg
	add, c, cStep, bias, ahead, fetch reg
	line                              reg // bytes by which ahead advances for each cache line of b
	as                                []reg
	size, index, at, n                reg // of the current tile: number of rows, offset in A, row of B, number of steps left
}

// multiplyPanel writes C += A B for a float32 A and a panel of float32 or of bf16 pairs. A bf16 is
// the upper half of a float32, so one shift or mask widens it. The multiply-add does not round a
// product before adding it.
func (g *generator) multiplyPanel(vectors int, pairs bool) {
	name, operands, does := "multiply", "a, b *float32", "a[r*aRow+i]·b[i][x] for r < rows"
	if pairs {
		name, operands, does = "widen", "a *float32, b *uint32", "a[r*aRow+i]·h for r < rows, where h is element i%2 of the bf16 pair b[i/2][x]"
	}
	g.routine(fmt.Sprintf("%s%d", name, vectors), "sums, "+operands+", aRow, k, rows, add int, c *float32, cStep int, bias *float32, ahead *byte, fetch int",
		"computes y[r][x] = Σ over i < k of "+does+".",
		fmt.Sprintf("Rows of sums and b are contiguous and have %d columns.\n//", 8*vectors),
		"If c is nil, the routine stores y in sums. If c is not nil, it stores y in c and leaves sums",
		"unchanged. Before the store, the routine adds these terms to y[r][x]:\n//",
		"  - the old sums[r][x] if add != 0",
		"  - bias[x] if c and bias are not nil\n//",
		"Rows of c are cStep elements apart. The routine prefetches into L2 the memory from address ahead",
		"on, at most the size of b. The first tiles share these prefetches, and fetch is the number of",
		"these tiles: 1, 2, 4, 8, 16, 32 or 64. A tile has up to 6 rows of a. k, rows > 0.")
	x := &panel{generator: g, vectors: vectors, pairs: pairs}
	x.sums, x.a, x.b, x.aRow, x.k, x.rows = g.param("sums"), g.param("a"), g.param("b"), g.stepParam("aRow"), g.param("k"), g.param("rows")
	x.add, x.c, x.cStep, x.bias, x.ahead, x.fetch = g.param("add"), g.param("c"), g.stepParam("cStep"), g.param("bias"), g.param("ahead"), g.param("fetch")
	x.line, x.as, x.size, x.index, x.at, x.n = g.temp(), g.temps(tileRows[0]), g.temp(), g.temp(), g.temp(), g.temp()
	if pairs {
		g.v("mvni v%d.4s, #255, msl #8", upperHalves)
	}
	g.op("MOVD $%d, %v", line, x.line)
	g.op("UDIV %v, %v", x.fetch, x.line)
	x.tiles()
	g.done()
}

// tiles writes the loop over tiles. Each number of rows has its own loop over k, the inner
// dimension. All tiles share the other code. When all memory at the address ahead is prefetched,
// the later prefetches all take the first line of the panel. These prefetches cost little, because
// this line is in the cache.
func (x *panel) tiles() {
	most := tileRows[0]
	x.label("tile")
	x.setSize()
	x.begin()
	for rows := most; rows > 0; rows-- {
		label := fmt.Sprintf("rows%d", rows)
		if rows > 1 {
			x.op("CMP $%d, %v", rows, x.size)
			x.op("BLT %sfewer", label)
		}
		p := rowProduct{a: x.as[:rows], index: x.index, b: x.at, step: none, n: x.n, narrow: x.vectors == 1, pairs: x.pairs}
		x.rowSums(label, p, func() {
			for range p.wordRows(steps) * p.bytes() / line {
				x.v("prfm pldl2keep, [x%d]", x.ahead)
				x.op("ADD %v, %v", x.line, x.ahead)
			}
		})
		if rows > 1 {
			x.op("B add")
			x.label(label + "fewer")
		}
	}
	x.store()
	x.op("SUBS %v, %v", x.size, x.rows)
	x.op("BEQ end")
	x.op("SUBS $1, %v", x.fetch)
	x.op("BNE tile")
	x.op("MOVD %v, %v", x.b, x.ahead)
	x.op("MOVD $0, %v", x.line)
	x.op("B tile")
	x.label("end")
}

// setSize sets the number of rows of the next tile: the largest possible, or the number of rows
// left if this is smaller. It splits the last seven or eight rows into two tiles of similar size.
func (x *panel) setSize() {
	most := tileRows[0]
	x.op("MOVD $%d, %v", most, x.size)
	x.op("CMP $%d, %v", most+2, x.rows)
	x.op("BGT sized")
	x.op("MOVD %v, %v", x.rows, x.size)
	x.op("CMP $%d, %v", most, x.rows)
	x.op("BLE sized")
	x.op("SUB $%d, %v", most/2, x.size)
	x.label("sized")
}

// begin writes the prefetch of the tile's rows of C, sets the tile's operands and clears its sums.
func (x *panel) begin() {
	x.op("CBZ %v, fetched", x.c)
	x.op("MOVD %v, %v", x.c, x.at)
	x.op("MOVD %v, %v", x.size, x.n)
	x.label("fetch")
	x.v("prfm pldl1keep, [x%d]", x.at)
	x.op("ADD %v, %v", x.cStep, x.at)
	x.count(x.n, "fetch")
	x.label("fetched")
	x.setRows(x.as, x.a, x.aRow)
	x.op("MOVD $0, %v", x.index)
	x.op("MOVD %v, %v", x.b, x.at)
	x.op("MOVD %v, %v", x.k, x.n)
	for r := range x.as {
		for q := range 2 * x.vectors {
			x.clear(sum(r, q))
		}
	}
}

// eachRow calls f for each row of a largest tile. If the tile has fewer rows, the written code
// jumps, after the tile's last row, to the label that next names.
func (x *panel) eachRow(next string, f func(r int)) {
	for r := range x.as {
		if r > 0 { // the tile may have fewer rows
			x.op("CMP $%d, %v", r, x.size)
			x.op("BLE %s", next)
		}
		f(r)
	}
	x.label(next)
}

// moveRow loads or stores one row of sums, C or the bias. name is the instruction, ldp or stp.
func (x *panel) moveRow(name string, v int, at reg, offset int) {
	for i := range x.vectors {
		x.v2(name, v+2*i, at, offset+32*i)
	}
}

// store writes the end of a tile. Depending on the arguments, the code adds the old sums and the
// bias. It stores the tile in C, or in sums if C is nil.
func (x *panel) store() {
	size := 32 * x.vectors
	add := func(r int) {
		for q := range 2 * x.vectors {
			x.v("fadd v%d.4s, v%d.4s, v%d.4s", sum(r, q), sum(r, q), elements+q)
		}
	}
	x.label("add")
	x.op("CBZ %v, set", x.add)
	x.eachRow("set", func(r int) {
		x.moveRow("ldp", elements, x.sums, r*size)
		add(r)
	})
	x.op("MOVD %v, %v", x.c, x.at)
	x.op("MOVD %v, %v", x.cStep, x.n)
	x.op("CBNZ %v, last", x.c)
	x.op("MOVD %v, %v", x.sums, x.at)
	x.op("MOVD $%d, %v", size, x.n)
	x.op("B plain")
	x.label("last")
	x.op("CBZ %v, plain", x.bias)
	x.moveRow("ldp", elements, x.bias, 0)
	x.eachRow("plain", add)
	x.eachRow("stored", func(r int) {
		x.moveRow("stp", sum(r, 0), x.at, 0)
		x.op("ADD %v, %v", x.n, x.at)
	})
	x.op("MADD %v, %v, %v, %v", x.size, x.a, x.aRow, x.a)
	x.op("MOVD $%d, %v", size, x.index)
	x.op("MADD %v, %v, %v, %v", x.size, x.sums, x.index, x.sums)
	x.op("CBZ %v, next", x.c)
	x.op("MOVD %v, %v", x.at, x.c)
	x.label("next")
}

// transposeEights writes the transpose of blocks of 8 rows and columns, four columns at a time.
func (g *generator) transposeEights() {
	g.routine("transpose", "dst *float32, dstStep, dstNext int, src *float32, srcStep, srcNext int, by *float32, blocks int",
		"transposes square blocks of 8 rows, and scales columns: in each block it sets",
		"dst[c][r] = by[c]·src[r][c] for r, c < 8.",
		"Within a block, rows are dstStep elements apart in dst, and srcStep elements apart in src. Blocks",
		"begin dstNext elements apart in dst, and srcNext elements apart in src. blocks is the number of",
		"blocks. by has 8 factors. blocks > 0.")
	dst, dstStep, dstNext := g.param("dst"), g.stepParam("dstStep"), g.stepParam("dstNext")
	src, srcStep, srcNext := g.param("src"), g.stepParam("srcStep"), g.stepParam("srcNext")
	by, blocks, at, to := g.param("by"), g.param("blocks"), g.temp(), g.temp()
	const r, t, factors = 0, 8, 16
	g.v2("ldp", factors, by, 0)
	g.label("block")
	g.op("MOVD %v, %v", dst, to)
	g.op("ADD %v, %v", dstNext, dst)
	for half := range 2 {
		g.op("ADD $%d, %v, %v", 16*half, src, at)
		for i := range 8 {
			g.v("ld1 {v%d.4s}, [x%d], x%d", r+i, at, srcStep)
		}
		for i := range 8 {
			g.v("fmul v%d.4s, v%d.4s, v%d.4s", r+i, r+i, factors+half)
		}
		g.transposeFours(r, t)
		g.transposeFours(r+4, t+4)
		for c := range 4 {
			g.v("stp q%d, q%d, [x%d, #0]", r+c, r+4+c, to)
			g.op("ADD %v, %v", dstStep, to)
		}
	}
	g.op("ADD %v, %v", srcNext, src)
	g.count(blocks, "block")
	g.done()
}
