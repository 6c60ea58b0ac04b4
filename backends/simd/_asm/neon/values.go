package main

// A valueSum holds the operands of Oᵀ = alpha Oᵀ + Vᵀ P.
type valueSum struct {
	*generator
	o, value, step, p, keys, vdim, alpha, masks reg
	from, at, left, mask                        reg // scratch
}

// values writes Oᵀ = alpha Oᵀ + Vᵀ P. It sums the products from zero and then adds alpha Oᵀ. The
// sum over few keys is smaller than O and has smaller rounding errors.
//
// If V is finite, a weight of 0 adds 0, and no mask is needed. Masks are slow, so the routine first
// checks whether V is finite.
func (g *generator) values() {
	g.routine("addValues", "o, v *float32, step int, p *float32, keys, vdim int, alpha *float32, masks *uint32",
		"sets o[c][i] = alpha[i]·o[c][i] + Σ over j of p[j][i]·v[j][c] for c < vdim and",
		"i < 16. The sum is over all j < keys with bit i of masks[j] set. Where this bit is clear, p[j][i]",
		"must be 0, and v[j][c] may be NaN. If masks is nil, all bits count as set. If alpha is nil, the",
		"routine does not read o: it stores the sums alone. v is [keys][vdim], with rows step elements",
		"apart. o is [vdim][16], p is [keys][16]. keys > 0.")
	x := &valueSum{generator: g, masks: g.param("masks"), mask: g.temp()}
	x.o, x.value, x.step, x.p = g.param("o"), g.param("v"), g.stepParam("step"), g.param("p")
	x.keys, x.vdim, x.alpha = g.param("keys"), g.param("vdim"), g.param("alpha")
	x.from, x.at, x.left = g.temp(), g.temp(), g.temp()
	g.op("CBZ %v, plain", x.masks)
	x.ifFinite("plain")
	x.sums("masked", tileRows[1:], x.maskedSums)
	g.op("B end")
	g.label("plain")
	x.sums("plain", tileRows, func(label string, rows int) {
		g.columnSums(label, rows, columnProduct{x.from, x.step, x.at, none, x.left})
	})
	g.label("end")
	g.done()
}

// sums writes the loops over columns of V, in groups of the given sizes. add writes the loop that
// adds the products of a group of columns to the sums of these columns.
func (x *valueSum) sums(name string, sizes []int, add func(label string, rows int)) {
	x.inGroups(name, x.vdim, sizes, func(rows int, label string) {
		x.op("MOVD %v, %v", x.value, x.from)
		x.op("MOVD %v, %v", x.p, x.at)
		x.op("MOVD %v, %v", x.keys, x.left)
		x.clearSums(rows)
		add(label+"keys", rows)
		x.store(rows, label)
		x.op("ADD $%d, %v", 4*rows, x.value)
	})
}

// store adds alpha·O to the sums, unless alpha is nil, and stores the sums in O.
func (x *valueSum) store(rows int, label string) {
	x.op("CBZ %v, %sset", x.alpha, label)
	const alpha, old = rowWhole, elements
	x.loadRow(x.alpha, 0, alpha)
	for r := range rows {
		for half := 0; half < vectors; half += 2 {
			x.v2("ldp", old, x.o, r*rowBytes+half*16)
			for q := half; q < half+2; q++ {
				x.v("fmla v%d.4s, v%d.4s, v%d.4s", sum(r, q), old+q-half, alpha+q)
			}
		}
	}
	x.label(label + "set")
	for r := range rows {
		x.storeRow(sum(r, 0), x.o, r*rowBytes)
	}
	x.op("ADD $%d, %v", rows*rowBytes, x.o)
}

func (g *generator) v2(name string, v int, at reg, offset int) {
	g.v("%s q%d, q%d, [x%d, #%d]", name, v, v+1, at, offset)
}

// ifFinite writes a check of V. The code jumps to label if V holds neither NaN nor infinity. It
// multiplies each element by 0 and adds up the products. The product of NaN or infinity and 0 is
// NaN.
func (x *valueSum) ifFinite(label string) {
	g := x.generator
	n, row := g.temp(), g.temp()
	const zero, acc, y = 0, 1, 5
	g.clear(zero, acc, acc+1, acc+2, acc+3)
	g.op("MOVD %v, %v", x.value, x.from)
	g.op("MOVD %v, %v", x.keys, x.left)
	g.label("row")
	g.op("MOVD %v, %v", x.from, row)
	g.op("ADD %v, %v", x.step, x.from)
	g.op("MOVD %v, %v", x.vdim, n)
	g.op("SUBS $%d, %v", lanes, n)
	g.op("BLT few")
	g.label("many")
	g.loadRow(row, 0, y)
	g.op("ADD $%d, %v", rowBytes, row)
	each(func(q int) { g.v("fmla v%d.4s, v%d.4s, v%d.4s", acc+q, y+q, zero) })
	g.op("SUBS $%d, %v", lanes, n)
	g.op("BGE many")
	g.label("few")
	g.op("ADDS $%d, %v", lanes, n)
	g.op("BEQ next")
	g.label("one")
	g.v("ldr s%d, [x%d], #4", y, row)
	g.v("fmla v%d.4s, v%d.4s, v%d.4s", acc, y, zero)
	g.count(n, "one")
	g.label("next")
	g.count(x.left, "row")
	for q := 1; q < vectors; q++ {
		g.v("fadd v%d.4s, v%d.4s, v%d.4s", acc, acc, acc+q)
	}
	g.v("fcmeq v%d.4s, v%d.4s, v%d.4s", acc, acc, acc)
	g.v("uminv s%d, v%d.4s", acc, acc)
	g.v("umov w%d, v%d.s[0]", n, acc)
	g.op("CBNZ %v, %s", n, label)
	g.used -= 2
}

// maskedSums adds the products in the lanes whose bits in masks are set. In the other lanes it
// multiplies the weight by 0 in place of the element of V, because this element may be NaN.
func (x *valueSum) maskedSums(label string, rows int) {
	g := x.generator
	const bits, seen, element, weight = 16, 20, elements, 28
	g.laneBits(bits)
	g.op("MOVD %v, %v", x.masks, x.mask)
	g.label(label)
	g.v("ld1r {v%d.4s}, [x%d]", element, x.mask)
	g.op("ADD $4, %v", x.mask)
	each(func(q int) { g.v("cmtst v%d.4s, v%d.4s, v%d.4s", seen+q, element, bits+q) })
	g.loadRow(x.at, 0, weight)
	g.op("ADD $%d, %v", rowBytes, x.at)
	g.loadElements(rows, x.from, x.step)
	for r := range rows {
		g.v("dup v%d.4s, v%d.s[%d]", element+1, element, r)
		each(func(q int) {
			y := element + 2 + q%2
			g.v("and v%d.16b, v%d.16b, v%d.16b", y, element+1, seen+q)
			g.v("fmla v%d.4s, v%d.4s, v%d.4s", sum(r, q), weight+q, y)
		})
	}
	g.count(x.left, label)
}

// laneBits sets the 16 lanes of the vectors v to v+3: lane i gets 1<<i.
func (g *generator) laneBits(v int) {
	var words []uint32
	for i := range lanes {
		words = append(words, 1<<i)
	}
	at := g.table("laneBits", words...)
	g.loadRow(at, 0, v)
	g.used--
}

func (g *generator) addSum() {
	g.routine("addSum", "sum, x *float32, rows int, alpha *float32",
		"sets sum[c][i] = alpha[i]·sum[c][i] + x[c][i]. sum and x are [rows][16]. rows > 0.")
	to, x, rows, alpha := g.param("sum"), g.param("x"), g.param("rows"), g.param("alpha")
	const by, old, z = 0, 4, 8
	g.loadRow(alpha, 0, by)
	g.label("row")
	g.loadRow(x, 0, z)
	g.loadRow(to, 0, old)
	each(func(q int) { g.v("fmla v%d.4s, v%d.4s, v%d.4s", z+q, old+q, by+q) })
	g.storeRow(z, to, 0)
	g.op("ADD $%d, %v", rowBytes, x)
	g.op("ADD $%d, %v", rowBytes, to)
	g.count(rows, "row")
	g.done()
}

func (g *generator) addScaled() {
	g.routine("addScaled", "sum, x *float32, rows int, alpha *float32",
		"adds alpha[i]·x[c][i] to sum[c][i], if alpha[i] is not 0. sum and x are [rows][16]. rows > 0.")
	to, x, rows, alpha := g.param("sum"), g.param("x"), g.param("rows"), g.param("alpha")
	const by, old, z, zero = 0, 4, 8, 12
	g.loadRow(alpha, 0, by)
	g.clear(z)
	each(func(q int) { g.v("fcmeq v%d.4s, v%d.4s, v%d.4s", zero+q, by+q, z) })
	g.label("row")
	g.loadRow(x, 0, z)
	g.loadRow(to, 0, old)
	each(func(q int) {
		g.v("bic v%d.16b, v%d.16b, v%d.16b", z+q, z+q, zero+q)
		g.v("fmla v%d.4s, v%d.4s, v%d.4s", old+q, z+q, by+q)
	})
	g.storeRow(old, to, 0)
	g.op("ADD $%d, %v", rowBytes, x)
	g.op("ADD $%d, %v", rowBytes, to)
	g.count(rows, "row")
	g.done()
}

// dots writes the routine that computes delta. The routine adds products in the same order as the
// routine scores, with which the backward pass computes dP. In a row that sees one key, dP - delta
// is therefore exactly 0.
func (g *generator) dots() {
	g.routine("dots", "sum, a, b *float32, dim int",
		"sets sum[i] = Σ over c < dim of a[c][i]·b[c][i]. a and b are [dim][16]. dim > 0.")
	to, a, b, n := g.param("sum"), g.param("a"), g.param("b"), g.param("dim")
	const even, odd, x, y = 0, 4, 8, 12
	g.clear(even, even+1, even+2, even+3, odd, odd+1, odd+2, odd+3)
	column := func(sums int) {
		g.loadRow(a, 0, x)
		g.loadRow(b, 0, y)
		each(func(q int) { g.v("fmla v%d.4s, v%d.4s, v%d.4s", sums+q, x+q, y+q) })
		g.op("ADD $%d, %v", rowBytes, a)
		g.op("ADD $%d, %v", rowBytes, b)
	}
	g.op("SUBS $2, %v", n)
	g.op("BLT last")
	g.label("two")
	column(even)
	column(odd)
	g.op("SUBS $2, %v", n)
	g.op("BGE two")
	g.label("last")
	g.op("TBZ $0, %v, end", n)
	column(even)
	g.label("end")
	each(func(q int) { g.v("fadd v%d.4s, v%d.4s, v%d.4s", even+q, odd+q, even+q) })
	g.storeRow(even, to, 0)
	g.done()
}
