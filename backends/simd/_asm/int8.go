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
	s, k, scale, keys, ahead := param("s"), param("k"), param("scale"), param("keys"), param("ahead")
	elements := g.vectorBytes / 4
	qStep, second, by, row, c, end := bytes(param("qStep")), GP64(), GP64(), GP64(), GP64(), GP64()
	acc, both, qs, scales := g.registers[:8], []int{8, 9}, g.registers[10:14], g.registers[14:16]
	qStep3 := GP64()
	LEAQ(Mem{Base: qStep, Index: qStep, Scale: 2}, qStep3)
	SHLQ(Imm(2), address("scaleStep"))
	Label("pair")
	MOVQ(k, second)
	MOVQ(scale, by)
	CMPQ(keys, Imm(1))
	JE(LabelRef("one")) // the last key stands in for the second
	ADDQ(address("step"), second)
	ADDQ(address("scaleStep"), by)
	Label("one")
	for _, z := range acc {
		VXORPS(z, z, z)
	}
	Load(Param("q"), row)
	XORQ(c, c)
	MOVQ(address("group"), end)
	VBROADCASTSS(Mem{Base: scale}, scales[0])
	VBROADCASTSS(Mem{Base: by}, scales[1])
	CMPQ(end, address("n"))
	JL(LabelRef("groups"))
	products := func(scaled bool) {
		for i, m := range []Mem{{Base: k, Index: c, Scale: 1}, {Base: second, Index: c, Scale: 1}} {
			g.widenInt8(m, both[i])
			if scaled {
				VMULPS(g.registers[both[i]], scales[i], g.registers[both[i]])
			}
		}
		for r, q := range qs {
			VMOVUPS(rowAt(row, qStep, qStep3, r), q)
			for i, z := range both {
				VFMADD231PS(g.registers[z], q, acc[2*r+i])
			}
		}
		PREFETCHT1(Mem{Base: ahead})
		ADDQ(Imm(uint64(2*elements)), ahead)
		ADDQ(Imm(uint64(4*elements)), row)
		ADDQ(Imm(uint64(elements)), c)
	}
	Label("elements")
	products(false)
	CMPQ(c, address("n"))
	JNE(LabelRef("elements"))
	for i, z := range acc {
		VMULPS(z, scales[i%2], z)
	}
	Label("sums")
	g.storeScoresInt8(acc, qs, s)
	ADDQ(Imm(8), s)
	ADDQ(address("step"), k)
	ADDQ(address("step"), k)
	ADDQ(address("scaleStep"), scale)
	ADDQ(address("scaleStep"), scale)
	SUBQ(Imm(2), keys)
	JG(LabelRef("pair"))
	JMP(LabelRef("done"))
	Label("groups")
	group := GP64()
	XORQ(group, group)
	Label("group")
	VBROADCASTSS(Mem{Base: scale, Index: group, Scale: 4}, scales[0])
	VBROADCASTSS(Mem{Base: by, Index: group, Scale: 4}, scales[1])
	CMPQ(end, address("n"))
	CMOVQGT(address("n"), end)
	Label("scaled")
	products(true)
	CMPQ(c, end)
	JNE(LabelRef("scaled"))
	INCQ(group)
	ADDQ(address("group"), end)
	CMPQ(c, address("n"))
	JNE(LabelRef("group"))
	JMP(LabelRef("sums"))
	Label("done")
	g.done()
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
	p, scale, j, w, at, oStep3, ahead := param("p"), param("scale"), GP64(), GP64(), GP64(), GP64(), param("ahead")
	acc, both, weight, without := g.registers[:8], []int{8, 9}, g.registers[10:14], g.registers[15]
	floatParam("without", without)
	LEAQ(Mem{Base: oStep, Index: oStep, Scale: 2}, oStep3)
	XORQ(j, j)
	Label("weights")
	by, z, seen := weight[0].AsY(), weight[1].AsY(), weight[2].AsY()
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
