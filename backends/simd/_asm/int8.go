package main

import (
	"strconv"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// int8Rows is the number of query rows that the routines of int8 keys process at a time.
const int8Rows = 4

// decodeInt8 emits the routines that read int8 keys and values.
func (g *generator) decodeInt8() {
	if !g.avx512 { // the routine of AVX2 serves AVX-512 too
		g.dequantize()
	}
	g.scoresInt8()
	g.valuesInt8()
	g.scoreRowInt8()
	g.valueRowInt8()
}

// widenInt8 sets register i to the elements at m, as float32.
func (g *generator) widenInt8(m Mem, i int) {
	VPMOVSXBD(m, g.registers[i])
	VCVTDQ2PS(g.registers[i], g.registers[i])
}

// dequantize emits the products of elements and one scale.
func (g *generator) dequantize() {
	g.routine("dequantize", "func(dst *float32, src *int8, scale float32, n int)", "sets dst[i] to scale·src[i] for i < n. n is a multiple of 8. n > 0.")
	dst, src, n := param("dst"), param("src"), param("n")
	floatParam("scale", g.registers[1])
	Label("step")
	g.widenInt8(Mem{Base: src}, 0)
	VMULPS(g.registers[0], g.registers[1], g.registers[0])
	VMOVUPS(g.registers[0], Mem{Base: dst})
	ADDQ(Imm(8), src)
	ADDQ(Imm(32), dst)
	SUBQ(Imm(8), n)
	JNZ(LabelRef("step"))
	g.done()
}

// scoresInt8 keeps the sums of four query rows with two keys in registers. If a key has one scale, the
// scale multiplies the sums. Else the scale of a group multiplies the group's elements.
func (g *generator) scoresInt8() {
	g.arithmetic("scoresInt8", "func(s *float32, k *int8, step int, scale *float32, scaleStep int, q *float32, qStep, n, group, keys int, ahead uintptr)",
		"sets s[r][j] to Σ over c < n of q[r][c]·scale[j][c/group]·k[j][c], for r < 4 and j < keys. Rows of s are 144",
		"elements apart, and each has memory for an even number of keys. Rows of q are qStep elements apart, rows of k are",
		"step elements apart, and rows of scale are scaleStep elements apart. n is a multiple of 16, and group is n or more,",
		"or a multiple of 16. keys, n > 0. The routine also prefetches about n*keys bytes that begin at ahead.")
	s, keys, x := param("s"), param("keys"), &int8Scores{generator: g, acc: g.registers[:8], scales: g.registers[14:16]}
	x.k[0], x.scale[0], x.ahead = param("k"), param("scale"), param("ahead")
	x.qStep, x.k[1], x.scale[1], x.row, x.c, x.qStep3 = bytes(param("qStep")), GP64(), GP64(), GP64(), GP64(), GP64()
	end := GP64()
	LEAQ(Mem{Base: x.qStep, Index: x.qStep, Scale: 2}, x.qStep3)
	SHLQ(Imm(2), address("scaleStep"))
	Label("pair")
	MOVQ(x.k[0], x.k[1])
	MOVQ(x.scale[0], x.scale[1])
	CMPQ(keys, Imm(1))
	JE(LabelRef("one")) // the last key stands in for the second
	ADDQ(address("step"), x.k[1])
	ADDQ(address("scaleStep"), x.scale[1])
	Label("one")
	for _, z := range x.acc {
		VXORPS(z, z, z)
	}
	Load(Param("q"), x.row)
	XORQ(x.c, x.c)
	MOVQ(address("group"), end)
	x.loadScales(func(i int) Mem { return Mem{Base: x.scale[i]} })
	CMPQ(end, address("n"))
	JL(LabelRef("groups"))
	Label("elements")
	x.products(false)
	CMPQ(x.c, address("n"))
	JNE(LabelRef("elements"))
	for i, z := range x.acc {
		VMULPS(z, x.scales[i%2], z)
	}
	Label("sums")
	g.storeScoresInt8(x.acc, g.registers[10:14], s)
	ADDQ(Imm(8), s)
	for range x.k {
		ADDQ(address("step"), x.k[0])
		ADDQ(address("scaleStep"), x.scale[0])
	}
	SUBQ(Imm(2), keys)
	JG(LabelRef("pair"))
	JMP(LabelRef("done"))
	x.groups(end)
	Label("done")
	g.done()
}

// An int8Scores is a loop over the elements of two keys.
type int8Scores struct {
	*generator
	k, scale                     [2]GPVirtual
	c, row, qStep, qStep3, ahead GPVirtual // c counts elements; row is the address of the elements of Q
	acc                          []VecPhysical
	scales                       []VecPhysical // of the current group of both keys
}

func (x *int8Scores) loadScales(at func(i int) Mem) {
	for i, z := range x.scales {
		VBROADCASTSS(at(i), z)
	}
}

// groups emits the loop over the groups of two keys. end is the end of the first group.
func (x *int8Scores) groups(end GPVirtual) {
	Label("groups")
	group := GP64()
	XORQ(group, group)
	Label("group")
	x.loadScales(func(i int) Mem { return Mem{Base: x.scale[i], Index: group, Scale: 4} })
	CMPQ(end, address("n"))
	CMOVQGT(address("n"), end)
	Label("scaled")
	x.products(true)
	CMPQ(x.c, end)
	JNE(LabelRef("scaled"))
	INCQ(group)
	ADDQ(address("group"), end)
	CMPQ(x.c, address("n"))
	JNE(LabelRef("group"))
	JMP(LabelRef("sums"))
}

// products adds the products of a vector of elements. If scaled is true, it multiplies the elements
// by their scales.
func (x *int8Scores) products(scaled bool) {
	both, elements := []int{8, 9}, x.vectorBytes/4
	for i, z := range both {
		x.widenInt8(Mem{Base: x.k[i], Index: x.c, Scale: 1}, z)
		if scaled {
			VMULPS(x.registers[z], x.scales[i], x.registers[z])
		}
	}
	for r, q := range x.registers[10:14] {
		VMOVUPS(rowAt(x.row, x.qStep, x.qStep3, r), q)
		for i, z := range both {
			VFMADD231PS(x.registers[z], q, x.acc[2*r+i])
		}
	}
	PREFETCHT1(Mem{Base: x.ahead})
	ADDQ(Imm(uint64(2*elements)), x.ahead)
	ADDQ(Imm(uint64(4*elements)), x.row)
	ADDQ(Imm(uint64(elements)), x.c)
}

// storeScoresInt8 stores the sums of the lanes of acc as the scores of four rows with two keys.
func (g *generator) storeScoresInt8(acc, t []VecPhysical, s GPVirtual) {
	var keys [2]VecPhysical
	for i := range keys {
		a := []VecPhysical{acc[i], acc[2+i], acc[4+i], acc[6+i]}
		g.sumLanes(a, t)
		keys[i] = a[0].AsX().(VecPhysical)
	}
	low, high := t[0].AsX(), t[1].AsX()
	VUNPCKLPS(keys[1], keys[0], low)
	VUNPCKHPS(keys[1], keys[0], high)
	for i, z := range []Register{low, high} {
		VMOVLPS(z, Mem{Base: s, Disp: 2 * i * scoreBytes})
		VMOVHPS(z, Mem{Base: s, Disp: (2*i + 1) * scoreBytes})
	}
}

// valuesInt8 keeps two vectors of four rows of O in registers, or the last 16 columns.
func (g *generator) valuesInt8() {
	g.arithmetic("valuesInt8", "func(o *float32, oStep int, p, scale, scaled *float32, without float32, v *int8, step, n, keys int, ahead uintptr)",
		"adds Σ over j < keys of p[r][j]·scale[j]·v[j][c] to o[r][c], for r < 4 and c < n. If without is 0, a weight of 0",
		"hides its key, even if the scale is NaN; else without is NaN. Rows of p are 144 elements apart, and so are rows of",
		"scaled, which is scratch for four rows. Rows of p and scale have memory for a multiple of 8 keys. Rows of o are",
		"oStep elements apart, and rows of v are step elements apart. n is a multiple of 16. keys, n > 0. The routine also",
		"prefetches n*keys bytes that begin at ahead.")
	o, oStep, scaled, v, keys := param("o"), bytes(param("oStep")), param("scaled"), param("v"), param("keys")
	j, w, at, oStep3, ahead := GP64(), GP64(), GP64(), GP64(), param("ahead")
	acc, both, weight := g.registers[:8], []int{8, 9}, g.registers[10:14]
	LEAQ(Mem{Base: oStep, Index: oStep, Scale: 2}, oStep3)
	g.scaleWeights(param("p"), param("scale"), scaled, keys, j)
	for vectors := 2; vectors*g.vectorBytes >= 64; vectors-- {
		label := func(s string) string { return s + strconv.Itoa(vectors) }
		columns := vectors * g.vectorBytes / 4
		Label(label("columns"))
		CMPQ(address("n"), Imm(uint64(columns)))
		JL(LabelRef(label("end")))
		place := func(i int) Mem { return rowAt(o, oStep, oStep3, i/2).Offset(i % 2 * g.vectorBytes) }
		for i, z := range acc {
			if i%2 < vectors {
				VMOVUPS(place(i), z)
			}
		}
		MOVQ(v, at)
		MOVQ(scaled, w)
		MOVQ(keys, j)
		Label(label("key"))
		for i := range vectors {
			g.widenInt8(Mem{Base: at, Disp: i * g.vectorBytes / 4}, both[i])
		}
		for r, z := range weight {
			VBROADCASTSS(Mem{Base: w, Disp: r * scoreBytes}, z)
			for i := range vectors {
				VFMADD231PS(g.registers[both[i]], z, acc[2*r+i])
			}
		}
		PREFETCHT1(Mem{Base: ahead})
		ADDQ(Imm(uint64(columns)), ahead)
		ADDQ(address("step"), at)
		ADDQ(Imm(4), w)
		DECQ(j)
		JNZ(LabelRef(label("key")))
		for i, z := range acc {
			if i%2 < vectors {
				VMOVUPS(z, place(i))
			}
		}
		ADDQ(Imm(uint64(4*columns)), o)
		ADDQ(Imm(uint64(columns)), v)
		SUBQ(Imm(uint64(columns)), address("n"))
		JMP(LabelRef(label("columns")))
		Label(label("end"))
	}
	g.done()
}

// scaleWeights sets scaled to the products of weights and scales, eight keys at a time. j is scratch.
func (g *generator) scaleWeights(p, scale, scaled, keys, j GPVirtual) {
	by, z, seen, without := g.registers[10].AsY(), g.registers[11].AsY(), g.registers[12].AsY(), g.registers[15]
	floatParam("without", without)
	XORQ(j, j)
	Label("weights")
	VMOVUPS(Mem{Base: scale, Index: j, Scale: 4}, by)
	for r := range int8Rows {
		VMOVUPS(Mem{Base: p, Index: j, Scale: 4, Disp: r * scoreBytes}, z)
		VCMPPS(Imm(4), without.AsY(), z, seen) // not equal, or NaN
		VMULPS(by, z, z)
		VANDPS(z, seen, z)
		VMOVUPS(z, Mem{Base: scaled, Index: j, Scale: 4, Disp: r * scoreBytes})
	}
	ADDQ(Imm(8), j)
	CMPQ(j, keys)
	JL(LabelRef("weights"))
}
