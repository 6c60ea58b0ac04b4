package main

import (
	"strconv"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const rowKeys = 4 // keys that scoreRowInt8 processes at a time

// scoreRowInt8 keeps the sums of one query row with four keys in registers: over even and odd vectors of a
// group, and over all groups.
func (g *generator) scoreRowInt8() {
	g.arithmetic("scoreRowInt8", "func(s *float32, k *int8, step int, scale *float32, scaleStep int, q *float32, n, group, keys int, ahead uintptr)",
		"sets s[j] to Σ over c < n of q[c]·scale[j][c/group]·k[j][c], for j < keys. s has memory for a multiple of 4 keys.",
		"Rows of k are step elements apart, and rows of scale are scaleStep elements apart. n is a multiple of 16, and",
		"group is n or more, or a multiple of 16. keys, n > 0. The routine also prefetches about n*keys bytes that",
		"begin at ahead.")
	k, scale, q, ahead := []GPVirtual{param("k")}, []GPVirtual{param("scale")}, param("q"), param("ahead")
	c, at, end := GP64(), GP64(), GP64()
	vectors := 64 / g.vectorBytes // 16 elements at a time
	acc, total, x := g.registers[:8], g.registers[8:12], g.registers[14:16]
	SHLQ(Imm(2), address("scaleStep"))
	for range rowKeys - 1 {
		k, scale = append(k, GP64()), append(scale, GP64())
	}
	Label("keys")
	lastKeys(k, scale)
	for _, z := range total {
		VXORPS(z, z, z)
	}
	XORQ(c, c)
	XORQ(at, at)
	MOVQ(address("group"), end)
	Label("group")
	for _, z := range acc[:vectors*rowKeys] {
		VXORPS(z, z, z)
	}
	CMPQ(end, address("n"))
	CMOVQGT(address("n"), end)
	Label("elements")
	g.productsOfRow(k, q, c)
	PREFETCHT1(Mem{Base: ahead})
	ADDQ(Imm(64), ahead)
	ADDQ(Imm(16), c)
	CMPQ(c, end)
	JL(LabelRef("elements"))
	for i, z := range total {
		sum := acc[vectors*i]
		if vectors > 1 {
			VADDPS(sum, acc[vectors*i+1], sum)
		}
		VBROADCASTSS(Mem{Base: scale[i], Index: at, Scale: 1}, x[0])
		VFMADD231PS(sum, x[0], z)
	}
	ADDQ(Imm(4), at)
	ADDQ(address("group"), end)
	CMPQ(c, address("n"))
	JL(LabelRef("group"))
	g.sumLanes(total, acc)
	MOVQ(address("s"), at)
	VMOVUPS(total[0].AsX(), Mem{Base: at})
	ADDQ(Imm(16), address("s"))
	MOVQ(k[rowKeys-1], k[0])
	ADDQ(address("step"), k[0])
	MOVQ(scale[rowKeys-1], scale[0])
	ADDQ(address("scaleStep"), scale[0])
	SUBQ(Imm(rowKeys), address("keys"))
	JG(LabelRef("keys"))
	g.done()
}

// productsOfRow adds the products of 16 elements from element c on, of Q at address q and of each key.
func (g *generator) productsOfRow(k []GPVirtual, q, c GPVirtual) {
	qs := g.registers[12 : 12+64/g.vectorBytes]
	for v, z := range qs {
		VMOVUPS(Mem{Base: q, Index: c, Scale: 4, Disp: g.vectorBytes * v}, z)
	}
	for i := range k {
		for v, z := range qs {
			g.widenInt8(Mem{Base: k[i], Index: c, Scale: 1, Disp: g.vectorBytes / 4 * v}, 14+v)
			VFMADD231PS(g.registers[14+v], z, g.registers[len(qs)*i+v])
		}
	}
}

// lastKeys sets the addresses of the second and later keys and their scales. The last key stands in
// for keys after it.
func lastKeys(k, scale []GPVirtual) {
	for i := 1; i < rowKeys; i++ {
		MOVQ(k[i-1], k[i])
		MOVQ(scale[i-1], scale[i])
		CMPQ(address("keys"), Imm(uint64(i)))
		JLE(LabelRef("rows" + strconv.Itoa(i)))
		ADDQ(address("step"), k[i])
		ADDQ(address("scaleStep"), scale[i])
		Label("rows" + strconv.Itoa(i))
	}
}

// valueRowInt8 keeps the sums of 32 columns of one row of O in registers: over even and odd keys.
func (g *generator) valueRowInt8() {
	g.arithmetic("valueRowInt8", "func(o, p *float32, v *int8, step int, scale *float32, scaleStep, n, group, keys int, ahead uintptr)",
		"adds Σ over j < keys of p[j]·scale[j][c/group]·v[j][c] to o[c], for c < n. Rows of v are step elements apart,",
		"and rows of scale are scaleStep elements apart. n is a multiple of 16, and group is n or more, or a multiple of 32.",
		"keys, n > 0. The routine also prefetches about n*keys bytes that begin at ahead.")
	o, v, scale, step, scaleStep, n, ahead := param("o"), param("v"), param("scale"), param("step"), bytes(param("scaleStep")), param("n"), param("ahead")
	at, p, by, keys, within := GP64(), GP64(), GP64(), GP64(), GP64()
	XORQ(within, within)
	for _, columns := range []int{32, 16} {
		vectors := 4 * columns / g.vectorBytes
		label := func(s string) string { return s + strconv.Itoa(columns) }
		Label(label("columns"))
		CMPQ(n, Imm(uint64(columns)))
		JL(LabelRef(label("end")))
		for i := range vectors {
			VMOVUPS(Mem{Base: o, Disp: g.vectorBytes * i}, g.registers[i])
			VXORPS(g.registers[4+i], g.registers[4+i], g.registers[4+i])
		}
		MOVQ(v, at)
		MOVQ(scale, by)
		MOVQ(address("p"), p)
		MOVQ(address("keys"), keys)
		key := func(acc int) {
			g.valueOfKey(acc, vectors, p, by, at)
			ADDQ(step, at)
			ADDQ(scaleStep, by)
		}
		SUBQ(Imm(2), keys)
		JL(LabelRef(label("last")))
		Label(label("pair"))
		key(0)
		key(4)
		PREFETCHT1(Mem{Base: ahead})
		ADDQ(Imm(uint64(2*columns)), ahead)
		ADDQ(Imm(8), p)
		SUBQ(Imm(2), keys)
		JGE(LabelRef(label("pair")))
		Label(label("last"))
		CMPQ(keys, I8(-1))
		JNE(LabelRef(label("even")))
		key(0)
		Label(label("even"))
		for i := range vectors {
			VADDPS(g.registers[i], g.registers[4+i], g.registers[i])
			VMOVUPS(g.registers[i], Mem{Base: o, Disp: g.vectorBytes * i})
		}
		ADDQ(Imm(uint64(4*columns)), o)
		ADDQ(Imm(uint64(columns)), v)
		SUBQ(Imm(uint64(columns)), n)
		ADDQ(Imm(uint64(columns)), within)
		CMPQ(within, address("group"))
		JNE(LabelRef(label("columns")))
		XORQ(within, within)
		ADDQ(Imm(4), scale)
		JMP(LabelRef(label("columns")))
		Label(label("end"))
	}
	g.done()
}

// valueOfKey adds a key's values to the vectors of sums from register acc on. acc is 0 or 4.
func (g *generator) valueOfKey(acc, vectors int, p, by, at GPVirtual) {
	weight, scale := g.registers[8+acc/4], g.registers[10+acc/4]
	VBROADCASTSS(Mem{Base: p, Disp: acc}, weight)
	VBROADCASTSS(Mem{Base: by}, scale)
	VMULPS(scale, weight, weight)
	for i := range vectors {
		g.widenInt8(Mem{Base: at, Disp: g.vectorBytes / 4 * i}, 12+i)
		VFMADD231PS(g.registers[12+i], weight, g.registers[acc+i])
	}
}
