package main

func (g *generator) transpose() {
	g.routine("transpose", "dst *float32, dstStep, dstNext int, src *float32, srcStep, srcNext int, by *float32, blocks int",
		"transposes square blocks of 4 rows, and scales columns: in each block it sets",
		"dst[c][r] = by[c]·src[r][c] for r, c < 4.",
		"Within a block, rows are dstStep elements apart in dst, and srcStep elements apart in src. Blocks",
		"begin dstNext elements apart in dst, and srcNext elements apart in src. blocks is the number of",
		"blocks. by has 4 factors. blocks > 0.")
	dst, dstStep, dstNext := g.param("dst"), g.stepParam("dstStep"), g.stepParam("dstNext")
	src, srcStep, srcNext := g.param("src"), g.stepParam("srcStep"), g.stepParam("srcNext")
	by, blocks, at, to := g.param("by"), g.param("blocks"), g.temp(), g.temp()
	const r, t, factors = 0, 4, 8
	g.v("ldr q%d, [x%d]", factors, by)
	g.label("block")
	g.op("MOVD %v, %v", src, at)
	g.op("ADD %v, %v", srcNext, src)
	for i := range 4 {
		g.v("ld1 {v%d.4s}, [x%d], x%d", r+i, at, srcStep)
	}
	g.op("MOVD %v, %v", dst, to)
	g.op("ADD %v, %v", dstNext, dst)
	for i := range 4 {
		g.v("fmul v%d.4s, v%d.4s, v%d.4s", r+i, r+i, factors)
	}
	g.transposeFours(r, t)
	for i := range 4 {
		g.v("str q%d, [x%d]", r+i, to)
		if i < 3 {
			g.op("ADD %v, %v", dstStep, to)
		}
	}
	g.count(blocks, "block")
	g.done()
}

// transposeFours writes the transpose of the four vectors numbered r to r+3. Vectors t to t+3 are
// scratch.
func (g *generator) transposeFours(r, t int) {
	for i := 0; i < 4; i += 2 { // pairs of rows, even columns and odd ones
		g.v("trn1 v%d.4s, v%d.4s, v%d.4s", t+i, r+i, r+i+1)
		g.v("trn2 v%d.4s, v%d.4s, v%d.4s", t+i+1, r+i, r+i+1)
	}
	for c := range 2 {
		g.v("trn1 v%d.2d, v%d.2d, v%d.2d", r+c, t+c, t+c+2)
		g.v("trn2 v%d.2d, v%d.2d, v%d.2d", r+c+2, t+c, t+c+2)
	}
}

// converted is the number of elements that one step of a conversion handles. A conversion needs at
// least that many elements.
const converted = 8

// inEights writes a loop over n >= 8 elements, eight at a time. The last eight may overlap the
// eight before them, so that no access is beyond the end of the arrays. dstSize and srcSize are the
// sizes in bytes of an element of dst and of src.
func (g *generator) inEights(n, dst, src reg, dstSize, srcSize int, body func()) {
	back := g.temp()
	g.label("eights")
	g.op("SUBS $%d, %v", converted, n)
	g.op("BLT rest")
	body()
	g.op("B eights")
	g.label("rest") // n is the number of elements left, minus eight
	g.op("CMP $-%d, %v", converted, n)
	g.op("BEQ end")
	for _, p := range []struct {
		at   reg
		size int
	}{{dst, dstSize}, {src, srcSize}} {
		g.op("MOVD $%d, %v", p.size, back)
		g.op("MUL %v, %v", n, back)
		g.op("ADD %v, %v", back, p.at)
	}
	body()
	g.label("end")
	g.done()
}

func (g *generator) widen(name, kind string) {
	g.routine("widen"+name, "dst *float32, src *uint16, n int",
		"sets dst[i] to the float32 value of the "+kind+" number src[i], for i < n. n >= 8.")
	dst, src, n := g.param("dst"), g.param("src"), g.param("n")
	g.inEights(n, dst, src, 4, 2, func() {
		g.v("ldr q0, [x%d], #16", src)
		g.widenPair(name, 0)
		g.v("stp q0, q1, [x%d], #32", dst)
	})
}

// widenPair widens the eight elements of vector v to float32 in v and v+1.
func (g *generator) widenPair(name string, v int) {
	if name == "F16" {
		g.v("fcvtl2 v%d.4s, v%d.8h", v+1, v)
		g.v("fcvtl v%d.4s, v%d.4h", v, v)
	} else {
		g.v("shll2 v%d.4s, v%d.8h, #16", v+1, v)
		g.v("shll v%d.4s, v%d.4h, #16", v, v)
	}
}

func (g *generator) narrowF16() {
	g.routine("narrowF16", "dst *uint16, src *float32, n int",
		"rounds src[i] to the nearest binary16 number, ties to even, and stores it in dst[i], for i < n.",
		"n >= 8.")
	dst, src, n := g.param("dst"), g.param("src"), g.param("n")
	g.inEights(n, dst, src, 2, 4, func() {
		g.v("ldp q0, q1, [x%d], #32", src)
		g.v("fcvtn v2.4h, v0.4s")
		g.v("fcvtn2 v2.8h, v1.4s")
		g.v("str q2, [x%d], #16", dst)
	})
}

// narrowBF16 writes the routine that converts float32 to bfloat16. The routine rounds by adding an
// integer to the bits of the float32. This integer is half a unit in the last place of the result,
// less 1 if the last place is even. A NaN becomes a quiet NaN instead.
func (g *generator) narrowBF16() {
	g.routine("narrowBF16", "dst *uint16, src *float32, n int",
		"rounds src[i] to the nearest bfloat16 number, ties to even, and stores it in dst[i], for",
		"i < n. n >= 8.")
	dst, src, n := g.param("dst"), g.param("src"), g.param("n")
	const half, one, quiet = 8, 9, 10
	g.word(0x7fff, half)
	g.word(1, one)
	g.word(1<<22, quiet)
	g.inEights(n, dst, src, 2, 4, func() {
		g.v("ldp q0, q1, [x%d], #32", src)
		for v := range 2 {
			t, number := 2+v, 4+v
			g.v("ushr v%d.4s, v%d.4s, #16", t, v)
			g.v("and v%d.16b, v%d.16b, v%d.16b", t, t, one)
			g.v("add v%d.4s, v%d.4s, v%d.4s", t, t, half)
			g.v("add v%d.4s, v%d.4s, v%d.4s", t, t, v)
			g.v("fcmeq v%d.4s, v%d.4s, v%d.4s", number, v, v)
			g.v("orr v%d.16b, v%d.16b, v%d.16b", v, v, quiet)
			g.v("bsl v%d.16b, v%d.16b, v%d.16b", number, t, v)
		}
		g.v("shrn v6.4h, v4.4s, #16")
		g.v("shrn2 v6.8h, v5.4s, #16")
		g.v("str q6, [x%d], #16", dst)
	})
}

// copyRows writes the routine that copies the rows of src to dst. If add is set, the routine adds
// the rows of src to dst instead.
func (g *generator) copyRows(add bool) {
	name, does := "copyRows", "sets dst[r][i] = src[r][i]"
	if add {
		name, does = "addRows", "adds src[r][i] to dst[r][i]"
	}
	g.routine(name, "dst *float32, step int, src *float32, rows int", does+" for r < rows and i < 16. Rows of dst are step elements apart.",
		"Rows of src are contiguous. rows > 0.")
	dst, step, src, rows := g.param("dst"), g.stepParam("step"), g.param("src"), g.param("rows")
	g.label("row")
	g.loadRow(src, 0, 0)
	if add {
		g.loadRow(dst, 0, 4)
		each(func(q int) { g.v("fadd v%d.4s, v%d.4s, v%d.4s", q, 4+q, q) })
	}
	g.storeRow(0, dst, 0)
	g.op("ADD $%d, %v", rowBytes, src)
	g.op("ADD %v, %v", step, dst)
	g.count(rows, "row")
	g.done()
}

// scaleRows writes the routine that finishes rows of O in workspace.
func (g *generator) scaleRows() {
	g.routine("scaleRows", "x *float32, step, n, rows int, by *float32",
		"multiplies x[r][i] by by[r] for r < rows and i < n. Rows of x are step elements apart. n is a",
		"multiple of 16. n, rows > 0.")
	x, step, n, rows, by := g.param("x"), g.stepParam("step"), g.param("n"), g.param("rows"), g.param("by")
	at, left := g.temp(), g.temp()
	const factor = 4
	g.label("row")
	g.v("ld1r {v%d.4s}, [x%d]", factor, by)
	g.op("MOVD %v, %v", x, at)
	g.op("LSR $4, %v, %v", n, left)
	g.label("vector")
	g.loadRow(at, 0, 0)
	each(func(q int) { g.v("fmul v%d.4s, v%d.4s, v%d.4s", q, q, factor) })
	g.storeRow(0, at, 0)
	g.op("ADD $%d, %v", rowBytes, at)
	g.count(left, "vector")
	g.op("ADD %v, %v", step, x)
	g.op("ADD $4, %v", by)
	g.count(rows, "row")
	g.done()
}

// fetch writes the routine that prefetches rows of a matrix. Kernels read several rows in parallel,
// more than the hardware prefetcher tracks, so the kernels prefetch rows themselves.
func (g *generator) fetch() {
	g.routine("fetch", "from *byte, step, bytes, rows int",
		"prefetches all cache lines of a matrix into L2. The matrix begins at address from.",
		"rows is the number of rows, bytes is the size of a row, and step is the row stride in bytes. The",
		"memory may be unmapped. bytes > 0, rows > 0.")
	from, step, bytes, rows := g.param("from"), g.param("step"), g.param("bytes"), g.param("rows")
	at, end := g.temp(), g.temp()
	g.label("row")
	g.op("AND $-%d, %v, %v", line, from, at)
	g.op("ADD %v, %v, %v", bytes, from, end)
	g.prefetchLines("line", at, end)
	g.op("ADD %v, %v", step, from)
	g.count(rows, "row")
	g.done()
}

// prefetchLines writes a loop that prefetches every cache line from address at up to address end.
// It advances at.
func (g *generator) prefetchLines(label string, at, end reg) {
	g.label(label)
	g.v("prfm pldl2keep, [x%d]", at)
	g.op("ADD $%d, %v", line, at)
	g.op("CMP %v, %v", end, at)
	g.op("BLO %s", label)
}

// maskBits writes the routine that packs a mask. Each byte becomes one bit of a byte. Byte i of the
// lower half then forms a 16-bit number with byte i of the upper half. The sum of the eight numbers
// holds all 16 bits.
func (g *generator) maskBits() {
	g.routine("maskBits", "masks *uint32, mask *bool, step, rows int",
		"packs rows of booleans into words. For i < 16, bit i of masks[r] is 1 if",
		"mask[r][i] is true. All other bits are 0. Rows of mask are step bytes apart. The routine reads 16",
		"bytes of each row. rows > 0.")
	masks, mask, step, rows := g.param("masks"), g.param("mask"), g.param("step"), g.param("rows")
	const x, other, bits = 0, 1, 2
	at := g.table("byteBits", 0x08040201, 0x80402010, 0x08040201, 0x80402010)
	g.v("ldr q%d, [x%d]", bits, at)
	g.label("row")
	g.v("ldr q%d, [x%d]", x, mask)
	g.op("ADD %v, %v", step, mask)
	g.v("cmtst v%d.16b, v%d.16b, v%d.16b", x, x, x)
	g.v("and v%d.16b, v%d.16b, v%d.16b", x, x, bits)
	g.v("ext v%d.16b, v%d.16b, v%d.16b, #8", other, x, x)
	g.v("zip1 v%d.16b, v%d.16b, v%d.16b", x, x, other)
	g.v("addv h%d, v%d.8h", x, x)
	g.v("str s%d, [x%d], #4", x, masks)
	g.count(rows, "row")
	g.done()
}
