package main

import "fmt"

// The register tile of all products is 6 rows and 16 columns of C: 24 vectors of sums, V0 to V23.
// In a step of C += A B, each row of the tile adds one element of A times a row of B. The 16
// elements of this row of B are in the lanes. The other 8 vectors hold A and B:
//
//	if rows of A are contiguous (scores, addProduct): V24 to V29 hold four elements of each row
//	of A, V30 and V31 half a row of B. The routine scores has two sums per element of C, so its tiles have half the rows.
//
//	if columns of A are contiguous (addValues, addProductT): V24 and V25 hold one element of A
//	for each row of C, V26 to V29 a row of B.
//
// Each load of B serves 12 or 24 multiply-adds, and no register is spilled.

var (
	tileRows      = []int{6, 4, 2, 1} // of the largest register tile, then of tiles for the last rows
	scoreRows     = []int{3, 2, 1}    // the same, with separate sums of even and odd elements
	none      reg = -1
)

const (
	elements = 24 // the first vector of A
	rowHalf  = 30 // half a row of B
	rowWhole = 26 // a row of B
	steps    = 4  // steps per iteration of the inner loops
)

func sum(r, q int) int { return r*vectors + q }

func (g *generator) clearSums(rows int) {
	for v := range rows * vectors {
		g.clear(v)
	}
}

// A rowProduct holds the operands of C = A B, with contiguous rows of A.
type rowProduct struct {
	a       []reg // addresses of rows of A
	index   reg   // byte offset in the rows of A
	b, step reg   // the current row of B; the row stride in bytes, or none if rows are contiguous
	n       reg   // number of steps; destroyed
	odd     int   // number of the first sum of odd elements; 0 if even and odd elements share sums
	narrow  bool  // rows of B have 8 elements
	pairs   bool  // bf16: a word of B holds elements of two rows, the first in the lower half
}

// bytes returns the stride in bytes of contiguous rows of B, which hold elements or pairs.
func (x *rowProduct) bytes() int { return x.halves() * rowBytes / 2 }

func (x *rowProduct) halves() int {
	if x.narrow {
		return 1
	}
	return 2
}

// wordRows returns the number of rows of words that hold n rows of B.
func (x *rowProduct) wordRows(n int) int {
	if x.pairs {
		return (n + 1) / 2
	}
	return n
}

// rowSums writes the loop that adds the products to the sums. If meanwhile is not nil, it writes
// additional code for each iteration, such as prefetches.
func (g *generator) rowSums(label string, x rowProduct, meanwhile func()) {
	g.op("SUBS $%d, %v", steps, x.n)
	g.op("BLT %srest", label)
	g.label(label)
	if meanwhile != nil {
		meanwhile()
	}
	g.rowSteps(x, steps)
	g.op("SUBS $%d, %v", steps, x.n)
	g.op("BGE %s", label)
	g.label(label + "rest") // the lower bits of n are the number of steps left
	if x.odd == 0 && !x.pairs {
		g.op("ANDS $%d, %v", steps-1, x.n)
		g.op("BEQ %send", label)
		g.label(label + "one")
		g.rowSteps(x, 1)
		g.count(x.n, label+"one")
		g.label(label + "end")
		return
	}
	for n := steps / 2; n > 0; n /= 2 {
		skip := fmt.Sprintf("%sskip%d", label, n)
		g.op("TBZ $%d, %v, %s", n/2, x.n, skip)
		g.rowSteps(x, n)
		g.label(skip)
	}
}

func (g *generator) rowSteps(x rowProduct, n int) {
	for r, a := range x.a {
		g.v(map[int]string{4: "ldr q%d, [x%d, x%d]", 2: "ldr d%d, [x%d, x%d]", 1: "ldr s%d, [x%d, x%d]"}[n], elements+r, a, x.index)
	}
	g.op("ADD $%d, %v", 4*n, x.index)
	for i := range n {
		offset := 0
		if x.step == none {
			offset = (x.wordRows(i+1) - 1) * x.bytes()
		}
		add := func(r, q, v int) {
			g.v("fmla v%d.4s, v%d.4s, v%d.s[%d]", i%2*x.odd+sum(r, q), v, elements+r, i)
		}
		for q := 0; q < 2*x.halves(); q += 2 {
			if x.pairs {
				g.addPairs(x, add, q, offset, i%2)
				continue
			}
			g.v("ldp q%d, q%d, [x%d, #%d]", rowHalf, rowHalf+1, x.b, offset+16*q)
			for r := range x.a {
				add(r, q, rowHalf)
				add(r, q+1, rowHalf+1)
			}
		}
		if x.step != none {
			g.op("ADD %v, %v", x.step, x.b)
		}
	}
	if x.step == none {
		g.op("ADD $%d, %v", x.wordRows(n)*x.bytes(), x.b)
	}
}

// upperHalves is the number of the vector that masks the upper half of every word. The vector is
// set only if B holds bf16 pairs.
const upperHalves = rowHalf + 1

// addPairs adds the products of A and half a row of words of B. If half is 0, the elements of B are
// the lower halves of the words, else the upper halves.
func (g *generator) addPairs(x rowProduct, add func(r, q, v int), first, offset, half int) {
	for q := first; q < first+2; q++ {
		g.v("ldr q%d, [x%d, #%d]", rowHalf, x.b, offset+16*q)
		if half == 0 {
			g.v("shl v%d.4s, v%d.4s, #16", rowHalf, rowHalf)
		} else {
			g.v("and v%d.16b, v%d.16b, v%d.16b", rowHalf, rowHalf, upperHalves)
		}
		for r := range x.a {
			add(r, q, rowHalf)
		}
	}
}

// setRows sets the registers in rows to the addresses of consecutive rows. step holds the row
// stride in bytes.
func (g *generator) setRows(rows []reg, first, step reg) {
	for r, a := range rows {
		if r == 0 {
			g.op("MOVD %v, %v", first, a)
		} else {
			g.op("ADD %v, %v, %v", step, rows[r-1], a)
		}
	}
}

// scores writes the routine that computes S = K Qᵀ and updates the running maxima as it stores S.
// Even and odd elements have separate sums: smaller sums have smaller rounding errors. These errors
// matter most when the backward pass computes dP with this routine. The difference dP - delta is
// often much smaller than dP, but has the same absolute error.
func (g *generator) scores() {
	g.routine("scores", "s, k *float32, step int, q *float32, dim, keys int, rowMax, ahead *float32",
		"sets s[j][i] to the dot product of row j of k and column i of q. It then raises",
		"rowMax[i] to the largest s[j][i], ignoring NaN. k is [keys][dim], with rows step elements apart.",
		"q is [dim][16], s is [keys][16]. dim > 0.\n//",
		"Products of even and of odd columns of k have separate sums, because smaller sums have smaller",
		"rounding errors. The routine also prefetches memory into L2: at most 3·dim bytes for each row of",
		"k, from address ahead on.")
	s, k, step, q := g.param("s"), g.param("k"), g.stepParam("step"), g.param("q")
	dim, keys, rowMax, ahead := g.param("dim"), g.param("keys"), g.param("rowMax"), g.param("ahead")
	rows, index, b, n := g.temps(scoreRows[0]), g.temp(), g.temp(), g.temp()
	g.inGroups("keys", keys, scoreRows, func(size int, label string) {
		g.setRows(rows[:size], k, step)
		g.op("MOVD $0, %v", index)
		g.op("MOVD %v, %v", q, b)
		g.clearSums(2 * size)
		g.op("MOVD %v, %v", dim, n)
		odd := size * vectors
		g.rowSums(label+"dim", rowProduct{a: rows[:size], index: index, b: b, step: none, n: n, odd: odd}, func() {
			if size == scoreRows[0] {
				g.v("prfm pldl2keep, [x%d]", ahead)
				g.op("ADD $%d, %v", line/2, ahead)
			}
		})
		for v := range odd {
			g.v("fadd v%d.4s, v%d.4s, v%d.4s", v, v, v+odd)
		}
		g.storeScores(s, rowMax, size)
		g.op("ADD %v, %v, %v", step, rows[size-1], k)
	})
	g.done()
}

// storeScores stores the sums and raises the maxima, which ignore NaN.
func (g *generator) storeScores(s, rowMax reg, rows int) {
	g.loadRow(rowMax, 0, elements)
	for r := range rows {
		g.storeRow(sum(r, 0), s, r*rowBytes)
		each(func(q int) { g.v("fmaxnm v%d.4s, v%d.4s, v%d.4s", elements+q, elements+q, sum(r, q)) })
	}
	g.storeRow(elements, rowMax, 0)
	g.op("ADD $%d, %v", rows*rowBytes, s)
}

// product writes C += A B, with 16 columns of B and C in the lanes. The routine sums the products
// from zero, and then adds the sum to C: a sum of few products is smaller than C and has smaller
// rounding errors.
func (g *generator) product() {
	g.routine("addProduct", "c *float32, cStep int, a *float32, aStep int, b *float32, bStep, rows, n int",
		"adds Σ over i < n of a[r][i]·b[i][x] to c[r][x] for r < rows and x < 16. a is [rows][n]. Rows",
		"of c, a and b are cStep, aStep and bStep elements apart. n > 0.")
	c, cStep, a, aStep := g.param("c"), g.stepParam("cStep"), g.param("a"), g.stepParam("aStep")
	b, bStep, rows, n := g.param("b"), g.stepParam("bStep"), g.param("rows"), g.param("n")
	as, index, at, left := g.temps(6), g.temp(), g.temp(), g.temp()
	g.inGroups("rows", rows, tileRows, func(size int, label string) {
		g.fetchRows(c, cStep, at, size)
		g.setRows(as[:size], a, aStep)
		g.op("MOVD $0, %v", index)
		g.op("MOVD %v, %v", b, at)
		g.op("MOVD %v, %v", n, left)
		g.clearSums(size)
		g.rowSums(label+"i", rowProduct{a: as[:size], index: index, b: at, step: bStep, n: left}, nil)
		g.addRowsOf(c, cStep, size)
		g.op("ADD %v, %v, %v", aStep, as[size-1], a)
	})
	g.done()
}

// fetchRows prefetches rows of C, which another core's cache may hold.
func (g *generator) fetchRows(c, step, at reg, rows int) {
	g.op("MOVD %v, %v", c, at)
	for range rows {
		g.v("prfm pldl1keep, [x%d]", at)
		g.op("ADD %v, %v", step, at)
	}
}

// addRowsOf adds the sums to rows of C and advances to the next rows.
func (g *generator) addRowsOf(c, step reg, rows int) {
	for r := range rows {
		g.loadRow(c, 0, elements)
		each(func(q int) { g.v("fadd v%d.4s, v%d.4s, v%d.4s", sum(r, q), sum(r, q), elements+q) })
		g.storeRow(sum(r, 0), c, 0)
		g.op("ADD %v, %v", step, c)
	}
}

func (g *generator) productT() {
	g.routine("addProductT", "c *float32, cStep int, a *float32, aStep int, b *float32, bStep, rows, n int",
		"adds Σ over i < n of a[i][r]·b[i][x] to c[r][x] for r < rows and x < 16. a is [n][rows]. Rows",
		"of c, a and b are cStep, aStep and bStep elements apart. n > 0.")
	c, cStep, a, aStep := g.param("c"), g.stepParam("cStep"), g.param("a"), g.stepParam("aStep")
	b, bStep, rows, n := g.param("b"), g.stepParam("bStep"), g.param("rows"), g.param("n")
	from, at, left := g.temp(), g.temp(), g.temp()
	g.inGroups("rows", rows, tileRows, func(size int, label string) {
		g.fetchRows(c, cStep, at, size)
		g.op("MOVD %v, %v", a, from)
		g.op("MOVD %v, %v", b, at)
		g.op("MOVD %v, %v", n, left)
		g.clearSums(size)
		g.columnSums(label+"i", size, columnProduct{from, aStep, at, bStep, left})
		g.addRowsOf(c, cStep, size)
		g.op("ADD $%d, %v", 4*size, a)
	})
	g.done()
}

// A columnProduct holds the operands of C = Aᵀ B. A row of A has one element for each row of C.
type columnProduct struct {
	a, aStep reg
	b, bStep reg // bStep is none if rows of B are contiguous
	n        reg // number of steps; destroyed
}

// columnSums writes the loop over the rows of A and B. In a step, only the last load from A
// advances the address a, so that the other loads do not wait for the new address.
func (g *generator) columnSums(label string, rows int, x columnProduct) {
	g.unrolled(label, x.n, steps, func(n int) {
		for i := range n {
			g.loadElements(rows, x.a, x.aStep)
			offset := 0
			if x.bStep == none {
				offset = i * rowBytes
			}
			g.loadRow(x.b, offset, rowWhole)
			if x.bStep != none {
				g.op("ADD %v, %v", x.bStep, x.b)
			}
			for r := range rows {
				each(func(q int) {
					g.v("fmla v%d.4s, v%d.4s, v%d.s[%d]", sum(r, q), rowWhole+q, elements+r/4, r%4)
				})
			}
		}
		if x.bStep == none {
			g.op("ADD $%d, %v", n*rowBytes, x.b)
		}
	})
}

// loadElements loads n adjacent elements and advances a by step.
func (g *generator) loadElements(n int, a, step reg) {
	switch n {
	case 6:
		g.v("ldr d%d, [x%d, #%d]", elements+1, a, 16)
		fallthrough
	case 4:
		g.v("ld1 {v%d.4s}, [x%d], x%d", elements, a, step)
	case 2:
		g.v("ld1 {v%d.2s}, [x%d], x%d", elements, a, step)
	case 1:
		g.v("ld1r {v%d.4s}, [x%d], x%d", elements, a, step)
	}
}
