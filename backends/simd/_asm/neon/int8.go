package main

import "fmt"

// int8Routines writes the routines of products in 8 bits. The products have three forms: with the
// instructions of every arm64 processor, with FEAT_DotProd and with FEAT_I8MM.
func (g *generator) int8Routines() {
	g.extent(false)
	g.extent(true)
	g.quantize()
	for _, x := range []int8Panel{
		{tier: "", width: 8, step: 8, rows: []int{6, 4, 2, 1}, multiply: (*int8Panel).pairSums},
		{tier: "DOT", width: 16, step: 16, rows: []int{6, 4, 2, 1}, multiply: (*int8Panel).dotSums},
		{tier: "I8MM", width: 16, step: 16, rows: []int{6, 4, 2}, multiply: (*int8Panel).matrixSums},
	} {
		x.generator = g
		x.write()
	}
}

// extent writes the search for the largest magnitude of a row. If scaled is true, the routine first
// multiplies the row by factors.
func (g *generator) extent(scaled bool) {
	if scaled {
		g.routine("scale", "dst, x, by *float32, n int) uint32",
			"sets dst[i] to x[i]·by[i] for i < n. It returns the bits of the largest magnitude of dst[i].",
			"n is a multiple of 16. n > 0.")
	} else {
		g.routine("extent", "x *float32, n int) uint32",
			"returns the bits of the largest magnitude of x[i] for i < n. n is a multiple of 16. n > 0.")
	}
	x, n := g.param("x"), g.param("n")
	dst, by := none, none
	if scaled {
		dst, by = g.param("dst"), g.param("by")
	}
	const most, factors = 0, 8
	g.clear(most)
	g.label("step")
	for v := 1; v <= 4; v += 2 {
		g.v("ldp q%d, q%d, [x%d], #32", v, v+1, x)
		if scaled {
			g.v("ldp q%d, q%d, [x%d], #32", factors+v, factors+v+1, by)
			g.do("fmul", v, v, factors+v)
			g.do("fmul", v+1, v+1, factors+v+1)
			g.v("stp q%d, q%d, [x%d], #32", v, v+1, dst)
		}
	}
	for v := 1; v <= 4; v++ {
		g.v("fabs v%d.4s, v%d.4s", v, v)
	}
	for _, p := range [][2]int{{1, 2}, {3, 4}, {1, 3}, {most, 1}} {
		g.do("umax", p[0], p[0], p[1])
	}
	g.op("SUBS $16, %v", n)
	g.op("BNE step")
	g.v("umaxv s%d, v%d.4s", most, most)
	g.v("umov w%d, v%d.s[0]", n, most)
	g.op("MOVW %v, %s", n, g.at("ret"))
	g.done()
}

// quantize writes the conversion of a row to integers.
func (g *generator) quantize() {
	g.routine("quantize", "dst *uint32, x *float32, n int, by float32",
		"sets byte i of dst to x[i]·by, rounded to an 8-bit integer, ties to even, for i < n.", "n is a multiple of 16. n > 0.")
	dst, x, n := g.param("dst"), g.param("x"), g.param("n")
	const by = 4
	g.broadcast("by", by)
	g.label("step")
	g.v("ldp q0, q1, [x%d], #32", x)
	g.v("ldp q2, q3, [x%d], #32", x)
	each(func(i int) { g.do("fmul", i, i, by) })
	each(func(i int) { g.v("fcvtns v%d.4s, v%d.4s", i, i) })
	g.v("uzp1 v0.8h, v0.8h, v1.8h")
	g.v("uzp1 v2.8h, v2.8h, v3.8h")
	g.v("uzp1 v0.16b, v0.16b, v2.16b")
	g.v("str q0, [x%d], #16", dst)
	g.op("SUBS $16, %v", n)
	g.op("BNE step")
	g.done()
}

// An int8Panel holds the operands of the product of A's rows and a panel of B, in 8 bits.
type int8Panel struct {
	*generator
	tier        string
	width, step int   // columns; elements of K in an iteration
	rows        []int // of tiles
	multiply    func(x *int8Panel, rows int)
	as          []reg // addresses in rows of A
	at, word    reg   // address in B; the number 4
}

// write writes the product. A tile has six rows. A loop for the same number of rows or more
// computes the last tile: addresses beyond its last row repeat the last row.
func (x *int8Panel) write() {
	defer func(before string) { x.generator.tier = before }(x.generator.tier)
	x.generator.tier += x.tier
	group := "quads"
	if x.tier == "I8MM" {
		group = "groups of eight"
	}
	x.routine("dots", "c *float32, cStep int, a *uint32, aRow int, scales *float32, b *uint32, k, rows, add int, bias *float32, sums *int32",
		fmt.Sprintf("computes y[r][x] = s·scales[r]·b[1][x] for r < rows and x < %d, where s is the sum of", x.width),
		"products of row r of a and column x of the integers in b. The first two rows of b are not",
		"integers, and b[1] holds float32 numbers. k is the number of words of a row of a, a multiple of 4.",
		"A word holds four 8-bit integers. b holds "+group+" of a column's integers.\n//",
		"The routine stores y in c. Before the store, it adds these terms to y[r][x]:\n//",
		"  - bias[x] if bias is not nil",
		"  - the old c[r][x] if add != 0\n//",
		fmt.Sprintf("Rows of c are cStep elements apart. sums is workspace, [%d][%d]. k, rows > 0.", x.rows[0], x.width))
	c, cStep, a, aRow, scales, b, k := x.param("c"), x.stepParam("cStep"), x.param("a"), x.stepParam("aRow"), x.param("scales"), x.param("b"), x.param("k")
	rows, add, bias, sums := x.param("rows"), x.param("add"), x.param("bias"), x.param("sums")
	size, n := x.temp(), x.temp()
	x.as, x.at, x.word = x.temps(x.rows[0]), x.temp(), x.temp()
	x.op("MOVD $4, %v", x.word)
	x.label("tile")
	x.op("MOVD $%d, %v", x.rows[0], size)
	x.op("CMP %v, %v", size, rows)
	x.op("CSEL LT, %v, %v, %v", rows, size, size)
	x.op("MOVD %v, %v", a, x.as[0])
	for r := 1; r < len(x.as); r++ {
		x.op("CMP $%d, %v", r, size)
		x.op("CSEL GT, %v, ZR, %v", aRow, n)
		x.op("ADD %v, %v, %v", n, x.as[r-1], x.as[r])
	}
	x.op("MADD %v, %v, %v, %v", size, a, aRow, a)
	x.op("ADD $%d, %v, %v", 8*x.width, b, x.at)
	x.op("LSR $%d, %v, %v", map[int]int{8: 1, 16: 2}[x.step], k, n)
	for v := range elements {
		x.clear(v)
	}
	for i, rows := range x.rows {
		label := fmt.Sprintf("rows%d", rows)
		if i+1 < len(x.rows) {
			x.op("CMP $%d, %v", x.rows[i+1], size)
			x.op("BLE %sfewer", label)
		}
		x.label(label)
		x.multiply(x, rows)
		x.count(n, label)
		if i+1 < len(x.rows) {
			x.op("B sums")
			x.label(label + "fewer")
		}
	}
	x.label("sums")
	x.storeSums(sums)
	x.finish(c, cStep, scales, b, add, bias, sums, size, n)
	x.op("SUBS %v, %v", size, rows)
	x.op("BNE tile")
	x.done()
}

// pairSums writes the products of eight elements of A's rows and eight columns of B. A 16-bit sum
// of two products cannot overflow. A column has two sums.
func (x *int8Panel) pairSums(rows int) {
	const b, first, second, low, high = elements, elements + 4, elements + 5, elements + 6, elements + 7
	x.v("ldp q%d, q%d, [x%d], #32", b, b+1, x.at)
	x.v("ldp q%d, q%d, [x%d], #32", b+2, b+3, x.at)
	for r, a := range x.as[:rows] {
		x.v("ld1r {v%d.4s}, [x%d], x%d", first, a, x.word)
		x.v("ld1r {v%d.4s}, [x%d], x%d", second, a, x.word)
		for v := range 2 {
			x.v("smull v%d.8h, v%d.8b, v%d.8b", low, b+v, first)
			x.v("smull2 v%d.8h, v%d.16b, v%d.16b", high, b+v, first)
			x.v("smlal v%d.8h, v%d.8b, v%d.8b", low, b+2+v, second)
			x.v("smlal2 v%d.8h, v%d.16b, v%d.16b", high, b+2+v, second)
			x.v("sadalp v%d.4s, v%d.8h", sum(r, 2*v), low)
			x.v("sadalp v%d.4s, v%d.8h", sum(r, 2*v+1), high)
		}
	}
}

// dotSums writes the products of 16 elements of A's rows and 16 columns of B.
func (x *int8Panel) dotSums(rows int) {
	for r, a := range x.as[:rows] {
		x.v("ldr q%d, [x%d], #16", elements+r, a)
	}
	for i := range 4 {
		for q := 0; q < 4; q += 2 {
			x.v("ldp q%d, q%d, [x%d], #32", rowHalf, rowHalf+1, x.at)
			for r := range rows {
				for v := range 2 {
					x.v("sdot v%d.4s, v%d.16b, v%d.4b[%d]", sum(r, q+v), rowHalf+v, elements+r, i)
				}
			}
		}
	}
}

// matrixSums writes the products of 16 elements of A's rows and 16 columns of B. A vector has the
// sums of two rows and two columns.
func (x *int8Panel) matrixSums(rows int) {
	for r := 0; r < rows; r += 2 {
		x.v("ldr q%d, [x%d], #16", rowHalf, x.as[r])
		x.v("ldr q%d, [x%d], #16", rowHalf+1, x.as[r+1])
		x.v("trn1 v%d.2d, v%d.2d, v%d.2d", elements+r, rowHalf, rowHalf+1)
		x.v("trn2 v%d.2d, v%d.2d, v%d.2d", elements+r+1, rowHalf, rowHalf+1)
	}
	for half := range 2 {
		for q := 0; q < 8; q += 2 {
			x.v("ldp q%d, q%d, [x%d], #32", rowHalf, rowHalf+1, x.at)
			for r := 0; r < rows; r += 2 {
				for v := range 2 {
					x.v("smmla v%d.4s, v%d.16b, v%d.16b", sum(r, q+v), elements+r+half, rowHalf+v)
				}
			}
		}
	}
}

// storeSums writes the store of a whole tile's sums, row by row.
func (x *int8Panel) storeSums(sums reg) {
	x.op("MOVD %v, %v", sums, x.at)
	for r := 0; r < x.rows[0]; r++ {
		v := sum(r, 0)
		switch x.tier {
		case "": // two sums of a column become one
			x.v("addp v%d.4s, v%d.4s, v%d.4s", v, v, v+1)
			x.v("addp v%d.4s, v%d.4s, v%d.4s", v+1, v+2, v+3)
		case "I8MM": // vectors of two rows and two columns become rows
			if r%2 == 0 {
				for q := 0; q < 8; q += 2 {
					x.v("trn1 v%d.2d, v%d.2d, v%d.2d", elements+q/2, v+q, v+q+1)
					x.v("trn2 v%d.2d, v%d.2d, v%d.2d", elements+4+q/2, v+q, v+q+1)
				}
			}
			v = elements + r%2*4
		}
		for q := 0; q < x.width/4; q += 2 {
			x.v("stp q%d, q%d, [x%d], #32", v+q, v+q+1, x.at)
		}
	}
}

// finish writes the loop that scales the sums of a tile's rows and stores them in C.
func (x *int8Panel) finish(c, cStep, scales, b, add, bias, sums, size, n reg) {
	const factor, columns, other = 8, 12, 16
	all := x.width / 4
	row := func(name string, v int, at reg, offset int) {
		for q := 0; q < all; q += 2 {
			x.v2(name, v+q, at, offset+16*q)
		}
	}
	plus := func(from reg, label string) {
		x.op("CBZ %v, %s", from, label)
		if from == add {
			from = c
		}
		row("ldp", other, from, 0)
		for q := range all {
			x.do("fadd", q, q, other+q)
		}
		x.label(label)
	}
	row("ldp", columns, b, 4*x.width)
	x.op("MOVD %v, %v", sums, x.at)
	x.op("MOVD %v, %v", size, n)
	x.label("row")
	x.v("ld1r {v%d.4s}, [x%d], x%d", factor, scales, x.word)
	row("ldp", 0, x.at, 0)
	for q := range all {
		x.v("scvtf v%d.4s, v%d.4s", q, q)
		x.do("fmul", q, q, factor)
		x.do("fmul", q, q, columns+q)
	}
	plus(bias, "plain")
	plus(add, "store")
	row("stp", 0, c, 0)
	x.op("ADD %v, %v", cStep, c)
	x.op("ADD $%d, %v", 4*x.width, x.at)
	x.count(n, "row")
}
