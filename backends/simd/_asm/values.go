package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const nilAlpha = "If alpha is nil, the routine does not read o: it stores the sums alone."

// A valueSum holds the operands of Oᵀ = alpha Oᵀ + Vᵀ P.
type valueSum struct {
	*generator

	o, v, step, p, keys, vdim, alpha, masks GPVirtual
	step3                                   GPVirtual // three times step
}

// newValueSum loads all arguments except masks. keys names the argument that holds the number of
// rows of P.
func (g *generator) newValueSum(keys string) *valueSum {
	x := &valueSum{generator: g, o: param("o"), v: param("v"), step: bytes(param("step")), p: param("p"), keys: param(keys), vdim: param("vdim"), alpha: param("alpha"), step3: GP64()}
	LEAQ(Mem{Base: x.step, Index: x.step, Scale: 2}, x.step3)
	return x
}

// values emits Oᵀ = alpha Oᵀ + Vᵀ P. It sums the products from zero and then adds alpha Oᵀ. The sum
// over few keys is smaller than O and has smaller rounding errors.
//
// If V is finite, a weight of 0 adds 0, and no mask is needed. Masks are slow without opmasks, so
// AVX2 first checks whether V is finite.
func (g *generator) values() {
	g.arithmetic("addValues", "func(o, v *float32, step int, p *float32, keys, vdim int, alpha *float32, masks *uint32)",
		"sets o[c][i] = alpha[i]·o[c][i] + Σ over j of p[j][i]·v[j][c] for c < vdim and",
		"i < LANES. The sum is over all j < keys with bit i of masks[j] set. Where this bit is clear,",
		"p[j][i] must be 0, and v[j][c] may be NaN. If masks is nil, all bits count as set.",
		nilAlpha,
		"v is [keys][vdim], with rows step elements apart. o is [vdim][LANES], p is [keys][LANES].",
		"keys > 0.")
	x := g.newValueSum("keys")
	x.masks = param("masks")
	TESTQ(x.masks, x.masks)
	JZ(LabelRef("plain"))
	if !g.avx512 {
		x.ifFinite("plain")
	}
	x.sums("masked", true)
	JMP(LabelRef("end"))
	Label("plain")
	x.sums("plain", false)
	Label("end")
	g.done()
}

// fewValues is the largest number of elements of V that stay in the L1 cache.
const fewValues = 1 << 12

// sums emits the sums of products. If V is small, even and odd keys have separate sums: smaller
// sums have smaller rounding errors. This doubles the registers per column. Each pass over V then
// handles half the columns. As the number of passes doubles, V must be in the cache.
func (g *valueSum) sums(name string, masked bool) {
	values := GP64()
	MOVQ(g.keys, values)
	IMULQ(g.vdim, values)
	CMPQ(values, U32(fewValues))
	JLE(LabelRef(name + "few"))
	g.columns(name, masked, 1)
	JMP(LabelRef(name + "all"))
	Label(name + "few")
	g.columns(name+"few", masked, 2)
	Label(name + "all")
}

// columns emits the loops over columns of V. each is the number of sums per column: 1, or 2 if even
// and odd keys have separate sums.
func (g *valueSum) columns(name string, masked bool, each int) {
	inGroups(name, g.vdim, g.groupsOf(each), func(rows int, label string) {
		sums := g.accumulators(each * rows)
		clearSums(sums)
		g.tile(label, masked, sums[:rows], sums[(each-1)*rows:])
		if each == 2 {
			addOdd(sums[:rows], sums[rows:])
		}
		g.storeValues(sums[:rows], label)
		ADDQ(U32(uint32(rows*g.rowBytes)), g.o)
		ADDQ(U32(uint32(rows*4)), g.v)
	})
}

// tile adds the products of all keys to the sums of len(even) columns of V. odd holds the sums of
// odd keys. If all keys share their sums, even and odd are the same slice.
func (g *valueSum) tile(label string, masked bool, even, odd [][]VecPhysical) {
	a, b, n, m := GP64(), GP64(), GP64(), GP64()
	MOVQ(g.v, a)
	MOVQ(g.p, b)
	MOVQ(g.keys, n)
	if masked {
		MOVQ(g.masks, m)
	}
	step := func(i int) {
		lanes, sums := Mem{Base: b, Disp: i * g.rowBytes}, [2][][]VecPhysical{even, odd}[i%2]
		element := func(r int) Mem { return rowAt(a, g.step, g.step3, i).Offset(r * 4) }
		if masked {
			g.maskedStep(sums, lanes, Mem{Base: m, Disp: i * 4}, element)
		} else {
			g.generator.step(sums, lanes, element)
		}
	}
	next := func(steps int) {
		advance(a, g.step, steps)
		ADDQ(U32(uint32(steps*g.rowBytes)), b)
		if masked {
			ADDQ(U32(uint32(steps*4)), m)
		}
	}
	if masked && !g.avx512 { // only a V with NaN or infinity needs this loop, which is rare: less unrolling saves code
		inPairs(label+"keys", n, 2, step, next)
	} else {
		overKeys(label+"keys", even, odd, n, step, next)
	}
}

// overKeys emits a loop over n keys. If odd keys have separate sums, each iteration begins with an
// even key. The loop destroys n.
func overKeys(label string, even, odd [][]VecPhysical, n GPVirtual, step func(i int), advance func(steps int)) {
	if &even[0] == &odd[0] {
		unrolled(label, n, step, advance)
	} else {
		inPairs(label, n, unroll, step, advance)
	}
}

// storeValues adds alpha·O to the sums, unless alpha is nil, and stores the sums in O.
func (g *valueSum) storeValues(acc [][]VecPhysical, label string) {
	at := func(r, v int) Mem { return g.part(Mem{Base: g.o, Disp: r * g.rowBytes}, v) }
	TESTQ(g.alpha, g.alpha)
	JZ(LabelRef(label + "set"))
	for v, z := range g.lanesB {
		VMOVUPS(g.part(Mem{Base: g.alpha}, v), z)
	}
	for r := range acc {
		for v, z := range acc[r] {
			VFMADD231PS(at(r, v), g.lanesB[v], z)
		}
	}
	Label(label + "set")
	for r := range acc {
		for v, z := range acc[r] {
			VMOVUPS(z, at(r, v))
		}
	}
}

// ifFinite emits a check of V, for AVX2 only. The code jumps to label if V holds neither NaN nor
// infinity.
func (g *valueSum) ifFinite(label string) {
	magnitude, tail, most := g.registers[0], g.registers[1], g.registers[2:2+unroll]
	x, n := g.registers[2+unroll], g.vectorLen()
	g.word(0x7fffffff, magnitude)
	for _, z := range most {
		VPXOR(z, z, z)
	}
	rest := param("vdim")
	ANDQ(Imm(uint64(n-1)), rest)
	g.broadcastWord(rest.As32().(GPVirtual), tail)
	VPCMPGTD(g.laneNumbers(), tail, tail)
	row, at, left, vectors := GP64(), GP64(), GP64(), GP64()
	MOVQ(g.v, row)
	MOVQ(g.keys, left)
	Label("row")
	MOVQ(row, at)
	MOVQ(g.vdim, vectors)
	SHRQ(Imm(3), vectors)
	unrolled("vectors", vectors, func(i int) {
		VPAND(g.part(Mem{Base: at}, i), magnitude, x)
		VPMAXSD(x, most[i], most[i])
	}, func(steps int) { ADDQ(U32(uint32(steps*g.vectorBytes)), at) })
	VMASKMOVPS(Mem{Base: at}, tail, x)
	VPAND(x, magnitude, x)
	VPMAXSD(x, most[0], most[0])
	ADDQ(g.step, row)
	DECQ(left)
	JNZ(LabelRef("row"))
	for _, z := range most[1:] {
		VPMAXSD(z, most[0], most[0])
	}
	g.word(0x7f7fffff, x)
	VPCMPGTD(x, most[0], x)
	VPTEST(x, x)
	JZ(LabelRef(label))
}

// maskedStep is step for the lanes whose bits are set in the word at mask. The sums of the other
// lanes do not change, even if an element is NaN. Without opmasks, the other lanes add 0·b, so b
// must be finite in the other lanes.
func (g *generator) maskedStep(acc [][]VecPhysical, b, mask Mem, element func(r int) Mem) {
	if g.avx512 {
		opmask := []OpmaskPhysical{K1, K2}
		for v, z := range g.lanesB {
			KMOVW(mask.Offset(v*2), opmask[v])
			VMOVUPS(g.part(b, v), z)
		}
		for r := range acc {
			x := g.broadcasts[r%len(g.broadcasts)]
			VBROADCASTSS(element(r), x)
			for v, z := range g.lanesB {
				VFMADD231PS(x, z, opmask[v], acc[r][v])
			}
		}
		return
	}
	visible := g.lanesB
	for v, z := range visible {
		g.laneMask(mask, v, z)
	}
	x, y := g.broadcasts[0], g.broadcasts[1]
	for r := range acc {
		VBROADCASTSS(element(r), x)
		VANDPS(x, visible[0], y)
		VFMADD231PS(g.part(b, 0), y, acc[r][0])
		VANDPS(x, visible[1], x)
		VFMADD231PS(g.part(b, 1), x, acc[r][1])
	}
}

func (g *generator) addSum() {
	g.arithmetic("addSum", "func(sum, x *float32, rows int, alpha *float32)",
		"sets sum[c][i] = alpha[i]·sum[c][i] + x[c][i]. sum and x are [rows][LANES]. rows > 0.")
	sum, x, rows, alpha := param("sum"), param("x"), param("rows"), param("alpha")
	by, z := g.registers[0:2], g.registers[2:4]
	for v := range vectors {
		VMOVUPS(g.part(Mem{Base: alpha}, v), by[v])
	}
	Label("row")
	for v := range vectors {
		VMOVUPS(g.part(Mem{Base: x}, v), z[v])
		VFMADD231PS(g.part(Mem{Base: sum}, v), by[v], z[v])
		VMOVUPS(z[v], g.part(Mem{Base: sum}, v))
	}
	ADDQ(U32(uint32(g.rowBytes)), sum)
	ADDQ(U32(uint32(g.rowBytes)), x)
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}

func (g *generator) addScaled() {
	g.arithmetic("addScaled", "func(sum, x *float32, rows int, alpha *float32)",
		"adds alpha[i]·x[c][i] to sum[c][i], if alpha[i] is not 0. sum and x are [rows][LANES]. rows > 0.")
	sum, x, rows, alpha := param("sum"), param("x"), param("rows"), param("alpha")
	by, z, seen := g.registers[0:2], g.registers[2:4], g.registers[4:6]
	VXORPS(z[0], z[0], z[0])
	for v := range vectors {
		VMOVUPS(g.part(Mem{Base: alpha}, v), by[v])
		g.differs(z[0], by[v], v, seen[v])
	}
	Label("row")
	for v := range vectors {
		g.kept(g.part(Mem{Base: x}, v), v, seen[v], z[v])
		VFMADD213PS(g.part(Mem{Base: sum}, v), by[v], z[v])
		VMOVUPS(z[v], g.part(Mem{Base: sum}, v))
	}
	ADDQ(U32(uint32(g.rowBytes)), sum)
	ADDQ(U32(uint32(g.rowBytes)), x)
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}

// differs sets the mask of vector v to the lanes in which x is not equal to zero: an opmask with
// AVX-512, else the register.
func (g *generator) differs(zero, x VecPhysical, v int, register VecPhysical) {
	if g.avx512 {
		VCMPPS(Imm(4), zero, x, []OpmaskPhysical{K1, K2}[v])
		return
	}
	VCMPPS(Imm(4), zero, x, register)
}

// kept sets z to the lanes of m that the mask of vector v keeps, and the other lanes to 0.
func (g *generator) kept(m Mem, v int, register, z VecPhysical) {
	if g.avx512 {
		VMOVUPS_Z(m, []OpmaskPhysical{K1, K2}[v], z)
		return
	}
	VANDPS(m, register, z)
}
