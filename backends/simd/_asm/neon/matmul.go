package main

import "fmt"

// The routines of internal/matmul. A tile of C is in registers: six rows of a panel of 16 columns are
// the 24 sums of the other products. Of A it takes four steps of each row, as they lie, of B half a row at a
// time, or a vector where that is bf16. A panel has eight columns where fewer are left.
func (g *generator) matmul() {
	for vectors := 1; vectors <= 2; vectors++ {
		g.multiplyPanel(vectors, false)
		g.multiplyPanel(vectors, true)
	}
	g.transposeEights()
	for _, a := range []activation{
		{"None", nil, nil, nil}, {"ReLU", g.constantsOfReLU, g.relu, g.reluSlope},
		{"GELU", g.constantsOfGELU, g.gelu, g.geluSlope}, {"GELUTanh", g.constantsOfGELUTanh, g.geluTanh, g.geluTanhSlope},
	} {
		g.finishRows(a)
		if a.slope != nil {
			g.slopes(a)
		}
	}
}

// fetches are with how many tiles the next part of B may be prefetched.
var fetches = []int{1, 4}

// A panel is the routine that multiplies rows of A with a panel: where things are.
type panel struct {
	*generator
	vectors                           int // of eight columns
	pairs                             bool
	sums, a, b, aRow, k, rows         reg
	add, c, cStep, bias, ahead, fetch reg
	as                                []reg
	index, at, n                      reg // of the tile at hand
}

// multiplyPanel writes C += A B for a panel, of float32 or of pairs of bf16, each of which is the upper
// half of a float32. Such a product is exact before it is added.
func (g *generator) multiplyPanel(vectors int, pairs bool) {
	name, operands, does := "multiply", "a, b *float32", "a[r*aRow+i]·b[i][c]"
	if pairs {
		name, operands, does = "widen", "a *float32, b *uint32", "a[r*aRow+i]·(half i%2 of the pair b[i/2][c])"
	}
	g.routine(fmt.Sprintf("%s%d", name, vectors), "sums, "+operands+", aRow, k, rows, add int, c *float32, cStep int, bias *float32, ahead *byte, fetch int",
		"sets sums[r][c] = Σ over i of "+does+", plus old sums[r][c] if add != 0.",
		fmt.Sprintf("Rows of sums and b have %d columns. If c != nil, the result goes to c instead, with rows cStep elements apart,", 8*vectors),
		"plus bias if bias != nil. Prefetches memory of the size of b or more, from ahead on, into the L2 cache",
		fmt.Sprintf("during the first fetch tiles of rows; fetch is %d or %d. k > 0.", fetches[0], fetches[1]))
	x := &panel{generator: g, vectors: vectors, pairs: pairs}
	x.sums, x.a, x.b, x.aRow, x.k, x.rows = g.param("sums"), g.param("a"), g.param("b"), g.stepParam("aRow"), g.param("k"), g.param("rows")
	x.add, x.c, x.cStep, x.bias, x.ahead, x.fetch = g.param("add"), g.param("c"), g.stepParam("cStep"), g.param("bias"), g.param("ahead"), g.param("fetch")
	x.as, x.index, x.at, x.n = g.temps(tileRows[0]), g.temp(), g.temp(), g.temp()
	if pairs {
		g.v("mvni v%d.4s, #255, msl #8", upperHalves)
	}
	g.op("CMP $%d, %v", fetches[0], x.fetch)
	g.op("BNE fetch%d", fetches[1])
	for _, n := range fetches {
		x.tiles(n)
	}
	x.tails()
	g.done()
}

// tiles writes whole tiles, which prefetch a part of what is ahead in each turn. After the tiles that
// do, it goes on with the slowest, which prefetch the panel itself once more: what is in the cache
// costs little. Seven and eight rows are two tails of about the same size.
func (x *panel) tiles(fetch int) {
	most, label, slowest := tileRows[0], fmt.Sprintf("fetch%d", fetch), fmt.Sprintf("fetch%d", fetches[1])
	x.label(label)
	x.op("CMP $%d, %v", most+2, x.rows)
	x.op("BGT %stile", label)
	x.op("CMP $%d, %v", most, x.rows)
	x.op("BNE tails")
	x.label(label + "tile")
	x.tile(most, label, fetch)
	x.op("SUB $%d, %v", most, x.rows)
	x.op("SUBS $1, %v", x.fetch)
	x.op("BNE %s", label)
	x.op("MOVD %v, %v", x.b, x.ahead)
	x.op("B %s", slowest)
}

// tails writes the tiles of fewer rows.
func (x *panel) tails() {
	x.label("tails")
	for rows := tileRows[0] - 1; rows > 0; rows-- {
		label := fmt.Sprintf("tail%d", rows)
		x.label(label)
		x.op("CMP $%d, %v", rows, x.rows)
		if rows > 4 {
			x.op("BNE %sdone", label) // of eight rows
		} else {
			x.op("BLT %sdone", label)
		}
		x.tile(rows, label, fetches[0])
		x.op("SUB $%d, %v", rows, x.rows)
		x.op("B %s", label)
		x.label(label + "done")
	}
}

// tile writes the products of one tile.
func (x *panel) tile(rows int, label string, fetch int) {
	p := rowProduct{a: x.as[:rows], index: x.index, b: x.at, step: none, n: x.n, narrow: x.vectors == 1, pairs: x.pairs}
	x.op("CBZ %v, %sfetched", x.c, label)
	x.fetchRows(x.c, x.cStep, x.at, rows)
	x.label(label + "fetched")
	x.setRows(p.a, x.a, x.aRow)
	x.op("MOVD $0, %v", x.index)
	x.op("MOVD %v, %v", x.b, x.at)
	x.op("MOVD %v, %v", x.k, x.n)
	x.eachSum(rows, func(v, _, _ int) { x.clear(v) })
	lines := max(1, p.wordRows(steps)*p.bytes()/line/fetch)
	x.rowSums(label+"step", p, func() {
		for i := range lines {
			x.v("prfm pldl2keep, [x%d, #%d]", x.ahead, i*line)
		}
		x.op("ADD $%d, %v", lines*line, x.ahead)
	})
	x.store(rows, label)
	x.op("ADD %v, %v, %v", x.aRow, x.as[rows-1], x.a)
}

// eachSum calls f for the sums of a tile, with their rows and their vectors in these.
func (x *panel) eachSum(rows int, f func(v, r, q int)) {
	for r := range rows {
		for q := range 2 * x.vectors {
			f(sum(r, q), r, q)
		}
	}
}

// moveRow moves a row of a tile or of what is added to it.
func (x *panel) moveRow(name string, v int, at reg, offset int) {
	for i := range x.vectors {
		x.v2(name, v+2*i, at, offset+32*i)
	}
}

// store writes what becomes of the sums of a tile.
func (x *panel) store(rows int, label string) {
	size := 32 * x.vectors
	x.op("CBZ %v, %sset", x.add, label)
	x.eachSum(rows, func(v, r, q int) {
		if q == 0 {
			x.moveRow("ldp", elements, x.sums, r*size)
		}
		x.v("fadd v%d.4s, v%d.4s, v%d.4s", v, v, elements+q)
	})
	x.label(label + "set")
	x.op("CBNZ %v, %slast", x.c, label)
	for r := range rows {
		x.moveRow("stp", sum(r, 0), x.sums, r*size)
	}
	x.op("B %sstored", label)
	x.label(label + "last")
	x.op("CBZ %v, %splain", x.bias, label)
	x.moveRow("ldp", elements, x.bias, 0)
	x.eachSum(rows, func(v, _, q int) { x.v("fadd v%d.4s, v%d.4s, v%d.4s", v, v, elements+q) })
	x.label(label + "plain")
	for r := range rows {
		x.moveRow("stp", sum(r, 0), x.c, 0)
		x.op("ADD %v, %v", x.cStep, x.c)
	}
	x.label(label + "stored")
	x.op("ADD $%d, %v", rows*size, x.sums)
}

// transposeEights writes the transpose of blocks of 8 rows and columns, four columns at a time.
func (g *generator) transposeEights() {
	g.routine("transpose", "dst *float32, dstStep, dstNext int, src *float32, srcStep, srcNext int, by *float32, blocks int",
		"sets dst[c][r] = by[c]*src[r][c] for as many blocks of 8 rows and columns as it is",
		"told. Rows lie dstStep and srcStep elements apart, blocks dstNext and srcNext.")
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
