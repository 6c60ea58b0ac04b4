package main

import "fmt"

// The register tile of all products is 6 rows of C and 16 columns: 24 vectors of sums, V0 to
// V23. C += A B takes, of A, one element for each row, and of B, a row of 16 elements, which are
// the lanes. What is left of the 32 vectors holds A and B:
//
//	elements of a row of A side by side (scores, addProduct): V24 to V29 four steps of A, V30
//	and V31 half a row of B; scores have two sums of each, and half as many rows;
//	elements of a column of A side by side (addValues, addProductT): V24 and V25 a step of A,
//	V26 to V29 a row of B.
//
// So each load of B serves 12 or 24 multiply-adds, and nothing is spilled.

var (
	tileRows      = []int{6, 4, 2, 1} // of the register tile, then of its remainders
	scoreRows     = []int{3, 2, 1}    // the same where elements with even and odd numbers have sums of their own
	none      reg = -1
)

const (
	elements = 24 // the first vector of A
	rowHalf  = 30 // half a row of B
	rowWhole = 26 // a row of B
	steps    = 4  // of the inner loops at a time
)

func sum(r, q int) int { return r*vectors + q }

func (g *generator) clearSums(rows int) {
	for v := range rows * vectors {
		g.clear(v)
	}
}

// A rowProduct is the operands of C = A B with elements of a row of A side by side.
type rowProduct struct {
	a       []reg // a row each
	index   reg   // bytes of a row that are done
	b, step reg   // bytes from row to row of B; none if they lie side by side
	n       reg   // it is destroyed
	odd     int   // how far the sums of elements with odd numbers lie from the others, in vectors; 0 if they are the same
	narrow  bool  // rows of B have 8 elements
	pairs   bool  // of bf16: words of B are elements of two rows, the first one in the lower half
}

// bytes returns how far rows of B that lie side by side are apart, or rows of pairs.
func (x *rowProduct) bytes() int { return x.halves() * rowBytes / 2 }

func (x *rowProduct) halves() int {
	if x.narrow {
		return 1
	}
	return 2
}

// wordRows returns how many rows of words n rows of B are.
func (x *rowProduct) wordRows(n int) int {
	if x.pairs {
		return (n + 1) / 2
	}
	return n
}

// rowSums writes the loop. meanwhile writes what else is done in each turn, if it is not nil.
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
	g.label(label + "rest") // the lower bits of n are what is left
	for n := steps / 2; n > 0; n /= 2 {
		skip := fmt.Sprintf("%sskip%d", label, n)
		g.op("TBZ $%d, %v, %s", n/2, x.n, skip)
		g.rowSteps(x, n)
		g.label(skip)
	}
}

// rowSteps writes so many steps.
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

// upperHalves is the vector that selects the upper half of every word, where B is pairs.
const upperHalves = rowHalf + 1

// addPairs adds products of half a row of words: of the lower halves, or of the upper ones.
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

// setRows sets registers to the addresses of rows.
func (g *generator) setRows(rows []reg, first, step reg) {
	for r, a := range rows {
		if r == 0 {
			g.op("MOVD %v, %v", first, a)
		} else {
			g.op("ADD %v, %v, %v", step, rows[r-1], a)
		}
	}
}

// scores writes S = K Qᵀ with the running maximum in the store. Even and odd elements have sums of
// their own: each is rounded in smaller units than one of all. That matters most where S is dP, as
// delta is subtracted from it, which is about as large.
func (g *generator) scores() {
	g.routine("scores", "s, k *float32, step int, q *float32, dim, keys int, top, ahead *float32",
		"sets s[j][i] = dot(k[j], q[i]) for keys rows of K, step elements apart,",
		"and raises top[i] to the largest of them. q is [dim][16], s is [keys][16]. dim > 0. Meanwhile",
		"it brings memory from ahead on into the second-level cache, 2*dim bytes for each key, or some more.")
	s, k, step, q := g.param("s"), g.param("k"), g.stepParam("step"), g.param("q")
	dim, keys, top, ahead := g.param("dim"), g.param("keys"), g.param("top"), g.param("ahead")
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
		g.storeScores(s, top, size)
		g.op("ADD %v, %v, %v", step, rows[size-1], k)
	})
	g.done()
}

// storeScores stores the sums and raises the maxima, which a NaN leaves as they are.
func (g *generator) storeScores(s, top reg, rows int) {
	g.loadRow(top, 0, elements)
	for r := range rows {
		g.storeRow(sum(r, 0), s, r*rowBytes)
		each(func(q int) { g.v("fmaxnm v%d.4s, v%d.4s, v%d.4s", elements+q, elements+q, sum(r, q)) })
	}
	g.storeRow(elements, top, 0)
	g.op("ADD $%d, %v", rows*rowBytes, s)
}

// product writes C += A B, with 16 columns of B and C in the lanes. The product is summed from
// zero, since a sum of few products is rounded in smaller units than C.
func (g *generator) product() {
	g.routine("addProduct", "c *float32, cStep int, a *float32, aStep int, b *float32, bStep, rows, n int",
		"adds to c[r][x] the sum over n rows i of B of a[r][i]*b[i][x], for rows rows of C",
		"and 16 columns x. A is [rows][n]. Rows lie the steps apart, in elements. n > 0.")
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

// fetchRows prefetches the rows of C, which another core may have written.
func (g *generator) fetchRows(c, step, at reg, rows int) {
	g.op("MOVD %v, %v", c, at)
	for range rows {
		g.v("prfm pldl1keep, [x%d]", at)
		g.op("ADD %v, %v", step, at)
	}
}

// addRowsOf adds the sums to rows of C, and moves on to the next rows.
func (g *generator) addRowsOf(c, step reg, rows int) {
	for r := range rows {
		g.loadRow(c, 0, elements)
		each(func(q int) { g.v("fadd v%d.4s, v%d.4s, v%d.4s", sum(r, q), sum(r, q), elements+q) })
		g.storeRow(sum(r, 0), c, 0)
		g.op("ADD %v, %v", step, c)
	}
}

// productT writes C += Aᵀ B.
func (g *generator) productT() {
	g.routine("addProductT", "c *float32, cStep int, a *float32, aStep int, b *float32, bStep, rows, n int",
		"adds to c[r][x] the sum over n rows i of B of a[i][r]*b[i][x], for rows rows of C",
		"and 16 columns x. A is [n][rows]. Rows lie the steps apart, in elements. n > 0.")
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

// A columnProduct is the operands of C = Aᵀ B with elements of a row of A, one of each row of C,
// side by side.
type columnProduct struct {
	a, aStep reg
	b, bStep reg // none if rows of B lie side by side
	n        reg // it is destroyed
}

// columnSums writes the loop. a is moved by its last load, with which the others do not wait.
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

// loadElements loads so many elements, side by side, and moves on by step.
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
