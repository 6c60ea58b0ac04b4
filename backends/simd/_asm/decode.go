package main

import (
	"fmt"
	"math"
	"slices"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const (
	decodeKeys  = 4   // rows of K or V that a loop handles at a time
	decodeBlock = 128 // keys of a block, at most
	scoreStep   = 144 // row stride of S in elements: a block of keys, and room for stores past the last key
	scoreBytes  = 4 * scoreStep
)

func (g *generator) decode() {
	for _, t := range g.storages() {
		t.attend()
	}
	g.decodeWeights()
	g.decodeInt8()
	g.readLimit()
}

func (g *generator) decodeRows() int {
	if g.avx512 {
		return 4
	}
	return 2
}

// decodeTile returns the registers of a tile. both has one register for each pair of a query row
// and a key. keys has one register for each key, and rows has one for each query row.
func (g *generator) decodeTile() (both, keys, rows []VecPhysical) {
	n := decodeKeys * g.decodeRows()
	return g.registers[:n], g.registers[n : n+decodeKeys], g.registers[n+decodeKeys:][:g.decodeRows()]
}

// attend emits the routine that reads K and V in decode, with the head dim in the lanes. The
// routine computes the scores S = Q Kᵀ of a block and O += P V of the block before. It alternates
// between four rows of K and four rows of V. Prefetched rows of V thus arrive during the work on K,
// and rows of K arrive during the work on V.
func (t storage) attend() {
	t.arithmetic("attend"+t.name, "func(s *float32, k *byte, kAt *int, kAhead int, q *float32, qStep, dim, qRows, kKeys int, "+
		"o *float32, oStep int, scratch, p *float32, v *byte, vAt *int, vAhead, vdim, oRows, vKeys, ahead int)",
		"computes the scores of one block of keys, and adds the weighted values of",
		"another block to o:", "",
		"  - s[r][j] = Σ over c < dim of q[r][c]·K[j][c], for r < qRows and j < kKeys",
		"  - o[r][c] = o[r][c] + Σ over j < vKeys of p[r][j]·V[j][c], for r < oRows and c < vdim",
		"",
		"K and V have the element type in the routine's name. Row j of K begins kAt[j] bytes after address",
		fmt.Sprintf("k, and row j of V begins vAt[j] bytes after address v. Rows of s and p are %d elements apart.", scoreStep),
		"Rows of q are qStep elements apart, and rows of o are oStep elements apart. Both steps are",
		"multiples of 32."+t.order(),
		fmt.Sprintf("The routine handles rows of q, s and p in groups of %d, so the last group must have memory for", t.decodeRows()),
		"all its rows. The routine may overwrite three elements after the last score in a row of s.",
		fmt.Sprintf("q[r][c] must be 0 for c >= dim. scratch has room for 3 rows of o.%s kKeys, vKeys <= %d. qRows,", t.limit("dim and vdim"), decodeBlock),
		"oRows > 0.", "",
		"The routine also prefetches K. If kAhead is not 0, it prefetches kAhead bytes after rows: all lines",
		"of a row in turn if row 1 begins where row 0 ends, else one line of each row. If kAhead is 0, it",
		"prefetches row j+ahead when it reads row j, and with AVX-512 also rows j+ahead-8 and j+ahead-16.",
		fmt.Sprintf("kAt then has %d entries before the first key and ahead+%d after the last. Likewise for V.", slices.Max(nearer), decodeKeys-1))
	var apart []func()
	t.beginKeys("k", "dim")
	t.beginKeys("v", "vdim")
	v := param("v")
	for range t.halves() { // so that V's scaled offset also addresses O and scratch
		SUBQ(v, address("o"))
		SUBQ(v, address("scratch"))
	}
	ends := t.constants([2]string{"dim", "vdim"})
	keys := GP64()
	Label("keys")
	Load(Param("kKeys"), keys)
	TESTQ(keys, keys)
	JZ(LabelRef("values"))
	CMPQ(keys, Imm(decodeKeys))
	JL(LabelRef("score"))
	t.scores(decodeKeys, &ends[0], &apart)
	JMP(LabelRef("values"))
	Label("score")
	t.scores(1, &ends[0], &apart)
	Label("values")
	Load(Param("vKeys"), keys)
	CMPQ(keys, Imm(decodeKeys))
	JL(LabelRef("value"))
	t.values(decodeKeys, &ends[1], &apart)
	JMP(LabelRef("keys"))
	Label("value")
	TESTQ(keys, keys)
	JZ(LabelRef("more"))
	t.values(1, &ends[1], &apart)
	JMP(LabelRef("keys"))
	Label("more")
	Load(Param("kKeys"), keys)
	TESTQ(keys, keys)
	JNZ(LabelRef("keys"))
	t.done()
	for _, emit := range apart {
		emit()
	}
}

func (t storage) limit(dim string) string {
	switch {
	case !t.tails():
		return fmt.Sprintf(" %s are multiples of %d.", dim, t.step())
	case t.name == "F16" && !t.avx512:
		return fmt.Sprintf(" %s are multiples of %d.", dim, t.vectorLen())
	}
	return ""
}

// scores emits the scores of all rows of Q with the next rows of K, and then advances past these
// rows of K. keys is the number of these rows.
func (t storage) scores(keys int, end *rowEnd, apart *[]func()) {
	label := fmt.Sprintf("score%d", keys)
	s, k := param("s"), t.keyRows("k", "dim", keys, apart)
	q, qStep, qStep3, left := param("q"), bytes(param("qStep")), GP64(), param("qRows")
	LEAQ(Mem{Base: qStep, Index: qStep, Scale: 2}, qStep3)
	Label(label + "rows")
	acc, ks, qs := t.decodeTile()
	for _, z := range acc {
		VXORPS(z, z, z)
	}
	b, n := GP64(), k.begin(label)
	MOVQ(q, b)
	t.alongRow(label, n, end, func(end *rowEnd) {
		for half := range t.halvesOf(end) {
			for i := range keys {
				t.load(k.row(i), half, ks[i], end)
			}
			for r, z := range qs {
				VMOVUPS(rowAt(b, qStep, qStep3, r).Offset(half*t.vectorBytes), z)
				for i := range keys {
					VFMADD231PS(ks[i], z, acc[r*decodeKeys+i])
				}
			}
		}
		t.prefetch(k, label, end)
	}, func() {
		k.advance()
		ADDQ(U32(uint32(t.vectorBytes*t.halves())), b)
	})
	for r := range t.decodeRows() {
		t.sumLanes(acc[r*decodeKeys:][:decodeKeys], ks)
		VMOVUPS(acc[r*decodeKeys].AsX(), Mem{Base: s, Disp: r * scoreBytes})
	}
	ADDQ(U32(uint32(t.decodeRows()*scoreBytes)), s)
	LEAQ(Mem{Base: q, Index: qStep, Scale: uint8(t.decodeRows())}, q)
	SUBQ(Imm(uint64(t.decodeRows())), left)
	JG(LabelRef(label + "rows"))
	ADDQ(Imm(uint64(4*keys)), address("s"))
	k.end()
}

// prefetch emits the prefetches of a part of a row. The end of a single row, half a vector, has none.
func (t storage) prefetch(k *keyRows, label string, end *rowEnd) {
	if k.keys > 1 || t.halvesOf(end) == t.halves() {
		k.prefetch(part(label, end))
	}
}

// part returns the label for a part of a row: the whole vectors if end is nil, else the elements
// after the last whole vector.
func part(label string, end *rowEnd) string {
	if end == nil {
		return label + "whole"
	}
	return label + "part"
}

// sumLanes sets element i of a[0] to the sum of the lanes of a[i], for i = 0 to 3. t is scratch.
func (g *generator) sumLanes(a, t []VecPhysical) {
	for i := 0; i < 4; i += 2 { // within each quarter, adds neighboring lanes of two vectors
		VUNPCKLPS(a[i+1], a[i], t[i])
		VUNPCKHPS(a[i+1], a[i], t[i+1])
		VADDPS(t[i], t[i+1], a[i])
	}
	VUNPCKLPD(a[2], a[0], t[0]) // adds pairs of these sums
	VUNPCKHPD(a[2], a[0], t[1])
	VADDPS(t[0], t[1], a[0])
	g.quarters(a[0], t[0], func(x, y, z VecPhysical) { VADDPS(x, y, z) })
}

// quarters reduces the four quarters of z (in AVX2 the two halves), each of four elements, into the
// first one. combine emits the reduction, for example an addition. t is scratch.
func (g *generator) quarters(z, t VecPhysical, combine func(x, y, z VecPhysical)) {
	if g.avx512 {
		VEXTRACTF64X4(Imm(1), z, t.AsY())
		combine(t.AsY().(VecPhysical), z.AsY().(VecPhysical), z.AsY().(VecPhysical))
		VEXTRACTF32X4(Imm(1), z.AsY(), t.AsX())
	} else {
		VEXTRACTF128(Imm(1), z.AsY(), t.AsX())
	}
	combine(t.AsX().(VecPhysical), z.AsX().(VecPhysical), z.AsX().(VecPhysical))
}

// acrossLanes reduces all elements of z and sets every lane of z to the result. combine emits the
// reduction. t is scratch.
func (g *generator) acrossLanes(z, t VecPhysical, combine func(x, y, z VecPhysical)) {
	g.quarters(z, t, combine)
	x, y := z.AsX().(VecPhysical), t.AsX().(VecPhysical)
	for _, order := range []uint64{0x4e, 0xb1} { // swaps the halves, then neighbors
		VPERMILPS(Imm(order), x, y)
		combine(y, x, x)
	}
	VBROADCASTSS(x, z)
}

// values adds the rows of V of the next keys, times the keys' weights, to all rows of O. It then
// advances past these rows of V. keys is the number of keys. The code loads and stores a few rows
// of O at a time, and broadcasts their weights only once. If fewer rows of O are left, rows of
// scratch stand in for the missing rows.
func (t storage) values(keys int, end *rowEnd, apart *[]func()) {
	label := fmt.Sprintf("value%d", keys)
	p, o, oStep, left := param("p"), param("o"), bytes(param("oStep")), param("oRows")
	v := t.keyRows("v", "vdim", keys, apart)
	Label(label + "rows")
	weights, vs, os := t.decodeTile()
	for r := range os {
		for i := range keys {
			VBROADCASTSS(Mem{Base: p, Disp: r*scoreBytes + i*4}, weights[r*decodeKeys+i])
		}
	}
	at := []GPVirtual{o}
	row := GP64()
	MOVQ(o, row)
	for r := 1; r < t.decodeRows(); r++ {
		at = append(at, param("scratch"))
		for range r - 1 { // each missing row has its own row of scratch: a load from a shared row would wait for a store
			ADDQ(oStep, at[r])
		}
		ADDQ(oStep, row)
		CMPQ(left, Imm(uint64(r)))
		CMOVQGT(row, at[r])
	}
	t.alongRow(label, v.begin(label), end, func(end *rowEnd) {
		for half := range t.halvesOf(end) {
			for i := range keys {
				t.load(v.row(i), half, vs[i], end)
			}
			for r, z := range os {
				out := Mem{Base: at[r], Index: v.offset, Scale: uint8(t.halves()), Disp: half * t.vectorBytes}
				VMOVUPS(out, z)
				for i := range keys {
					VFMADD231PS(vs[i], weights[r*decodeKeys+i], z)
				}
				VMOVUPS(z, out)
			}
		}
		t.prefetch(v, label, end)
	}, v.advance)
	ADDQ(U32(uint32(t.decodeRows()*scoreBytes)), p)
	LEAQ(Mem{Base: o, Index: oStep, Scale: uint8(t.decodeRows())}, o)
	SUBQ(Imm(uint64(t.decodeRows())), left)
	JG(LabelRef(label + "rows"))
	ADDQ(Imm(uint64(4*keys)), address("p"))
	v.end()
}

// decodeWeights emits the routine that replaces S by P = 2^(scale·(S - max)), updates the running
// maximum and sum, and rescales O.
func (g *generator) decodeWeights() {
	g.arithmetic("decodeWeights", "func(s *float32, rows, keys int, m, l *float32, scale float32, o *float32, oStep int)",
		"updates the online softmax with the scores s of a block of keys. m[r] is the", "maximum of the scores so far of row r, and l[r] is the sum of the weights so far. The steps for",
		"each row r:", "", "  - top = the largest of the old m[r] and all s[r][j] with j < keys, ignoring NaN", "  - a = 2^(scale·(m[r] - top))", "  - s[r][j] = 2^(scale·(s[r][j] - top)) for j < keys, the weights",
		"  - l[r] = a·l[r] + Σ over j < keys of s[r][j]", "  - row r of o is multiplied by a", "  - m[r] = top", "",
		fmt.Sprintf("In the exponents, a top of -Inf counts as the lowest finite number. Rows of s are %d elements", scoreStep),
		fmt.Sprintf("apart. The caller must set s[r][j] to -Inf for j from keys up to a multiple of %d. Rows of o are", g.vectorLen()), fmt.Sprintf("oStep elements apart, a multiple of 16. 0 < keys <= %d, rows > 0.", decodeBlock))
	s, rows, keys, m, l := param("s"), param("rows"), param("keys"), param("m"), param("l")
	o, oStep := param("o"), bytes(param("oStep"))
	ADDQ(Imm(uint64(g.vectorLen()-1)), keys)
	ANDQ(I32(-g.vectorLen()), keys)
	SHLQ(Imm(2), keys) // to bytes
	g.exp2Constants()
	x, n, p, shift, sum, scale, alpha := g.registers[0], g.registers[1], g.registers[2], g.registers[3], g.registers[4], g.registers[5], g.registers[6]
	floatParam("scale", scale)
	overRow := func(label string, body func(m Mem)) {
		i := GP64()
		XORQ(i, i)
		Label(label)
		body(Mem{Base: s, Index: i, Scale: 1})
		ADDQ(U32(uint32(g.vectorBytes)), i)
		CMPQ(i, keys)
		JL(LabelRef(label))
	}
	Label("row")
	VBROADCASTSS(Mem{Base: m}, alpha)
	VMOVAPS(alpha, shift)
	overRow("top", func(score Mem) {
		VMOVUPS(score, x)
		VMAXPS(shift, x, shift) // in this order a NaN score leaves the maximum as it is
	})
	g.acrossLanes(shift, x, func(x, y, z VecPhysical) { VMAXPS(x, y, z) })
	VMOVSS(shift.AsX(), Mem{Base: m})
	g.constant(-math.MaxFloat32, n)
	VMAXPS(shift, n, shift)
	VXORPS(sum, sum, sum)
	overRow("weight", func(score Mem) {
		VMOVUPS(score, x)
		VSUBPS(shift, x, x) // before scaling, so that large scores lose no digits
		VMULPS(scale, x, x)
		g.exp2(x, n, p)
		VMOVUPS(x, score)
		VADDPS(x, sum, sum)
	})
	VSUBPS(shift, alpha, alpha)
	VMULPS(scale, alpha, alpha)
	g.exp2(alpha, n, p)
	g.acrossLanes(sum, x, func(x, y, z VecPhysical) { VADDPS(x, y, z) })
	VMULSS(Mem{Base: l}, alpha.AsX(), x.AsX())
	VADDSS(x.AsX(), sum.AsX(), sum.AsX())
	VMOVSS(sum.AsX(), Mem{Base: l})
	g.rescale(o, oStep, alpha, x, n)
	ADDQ(U32(scoreBytes), s)
	ADDQ(Imm(4), m)
	ADDQ(Imm(4), l)
	ADDQ(oStep, o)
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}

// rescale multiplies a row of O by a factor. It does nothing if the factor is 1, the usual case:
// most blocks of keys do not raise the maximum.
func (g *generator) rescale(o, oStep GPVirtual, by, x, one VecPhysical) {
	g.constant(1, one)
	VUCOMISS(one.AsX(), by.AsX())
	JE(LabelRef("same"))
	i := GP64()
	XORQ(i, i)
	Label("rescale")
	at := Mem{Base: o, Index: i, Scale: 1}
	VMULPS(at, by, x)
	VMOVUPS(x, at)
	ADDQ(U32(uint32(g.vectorBytes)), i)
	CMPQ(i, oStep)
	JL(LabelRef("rescale"))
	Label("same")
}

// readLimit emits the routine that measures the memory read bandwidth. The routine does little else
// per vector, so memory limits its speed.
func (g *generator) readLimit() {
	const vectors = 8
	g.routine("readPeak", "func(x *byte, n int)",
		fmt.Sprintf("reads n bytes that begin at address x, to measure the memory bandwidth. n is a positive multiple of %d.", vectors*g.vectorBytes))
	x, n := param("x"), param("n")
	Label("loop")
	for i := range vectors {
		VORPS(Mem{Base: x, Disp: i * g.vectorBytes}, g.registers[i], g.registers[i])
	}
	ADDQ(U32(uint32(vectors*g.vectorBytes)), x)
	SUBQ(U32(uint32(vectors*g.vectorBytes)), n)
	JNZ(LabelRef("loop"))
	g.done()
}
