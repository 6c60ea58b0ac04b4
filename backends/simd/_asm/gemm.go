package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// accumulators returns the register tile: rows x vectors.
func accumulators(rows int) [][]VecPhysical {
	all := []VecPhysical{Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15}
	acc := make([][]VecPhysical, rows)
	for r := range acc {
		acc[r] = all[r*vectors : (r+1)*vectors]
	}
	return acc
}

// lanesB are one row of the operand that has the queries in its lanes.
var lanesB = []VecPhysical{Z16, Z17}

// broadcasts take turns, so that the load of one row overlaps the products of another.
var broadcasts = []VecPhysical{Z18, Z19, Z20, Z21}

// step multiplies one row of lanes, at b, with one element for each row of the
// tile, and adds the products, in the lanes of opmask if there is one.
func step(acc [][]VecPhysical, b Mem, element func(r int) Mem, opmask []OpmaskPhysical) {
	for v, z := range lanesB {
		VMOVUPS(b.Offset(v*64), z)
	}
	for r := range acc {
		x := broadcasts[r%len(broadcasts)]
		VBROADCASTSS(element(r), x)
		for v, z := range lanesB {
			if opmask != nil {
				VFMADD231PS(x, z, opmask[v], acc[r][v])
			} else {
				VFMADD231PS(x, z, acc[r][v])
			}
		}
	}
}

// inGroups emits code for as many groups of 8 rows as count holds and then for
// the remaining 4, 2 and 1. body handles a group and leaves count alone.
func inGroups(name string, count GPVirtual, body func(rows int, label string)) {
	for rows := groupRows; rows > 0; rows /= 2 {
		label := fmt.Sprintf("%s%d", name, rows)
		Label(label)
		CMPQ(count, Imm(uint64(rows)))
		JL(LabelRef(label + "done"))
		body(rows, label)
		SUBQ(U32(uint32(rows)), count)
		if rows == groupRows {
			JMP(LabelRef(label))
		}
		Label(label + "done")
	}
}

// unroll is how many steps a loop takes at a time. Address arithmetic and the
// branch compete with multiply-adds for ports on Intel processors.
const unroll = 4

// unrolled emits a loop of n steps: step(i) for i in [0, unroll) and advance
// over that many, then the rest one by one. It destroys n.
func unrolled(label string, n GPVirtual, step func(i int), advance func(steps int)) {
	SUBQ(U32(unroll), n)
	JL(LabelRef(label + "rest"))
	Label(label)
	for i := range unroll {
		step(i)
	}
	advance(unroll)
	SUBQ(U32(unroll), n)
	JGE(LabelRef(label))
	Label(label + "rest")
	ADDQ(U32(unroll), n)
	JZ(LabelRef(label + "end"))
	Label(label + "one")
	step(0)
	advance(1)
	DECQ(n)
	JNZ(LabelRef(label + "one"))
	Label(label + "end")
}

// bytes turns a number of float32 elements into bytes.
func bytes(elements Register) GPVirtual {
	r := elements.(GPVirtual)
	SHLQ(Imm(2), r)
	return r
}

// routine begins a routine that keeps none of its pointers.
func routine(name, signature string) {
	TEXT(name, NOSPLIT, signature)
	Pragma("noescape")
}

// param loads a pointer or int argument.
func param(name string) GPVirtual { return Load(Param(name), GP64()).(GPVirtual) }

// scores emits S = K Qᵀ with the running maximum in the store.
func scores() {
	routine("scoresAVX512", "func(s, k *float32, step int, q *float32, dim, keys int, top *float32)")
	Doc("scoresAVX512 sets s[j][i] = dot(k[j], q[i]) for keys rows of K, step elements apart,",
		"and raises top[i] to the largest of them. q is [dim][32], s is [keys][32]. dim > 0.")
	s, k, step0 := param("s"), param("k"), bytes(param("step"))
	q, dim, keys, top := param("q"), param("dim"), param("keys"), param("top")
	step3 := GP64()
	LEAQ(Mem{Base: step0, Index: step0, Scale: 2}, step3)
	max := []VecPhysical{Z28, Z29}
	for v, z := range max {
		VMOVUPS(Mem{Base: top, Disp: v * 64}, z)
	}
	inGroups("keys", keys, func(rows int, label string) {
		acc := accumulators(rows)
		for r := range acc {
			for _, z := range acc[r] {
				VPXORQ(z, z, z)
			}
		}
		a0, a4, b, n := GP64(), GP64(), GP64(), GP64()
		MOVQ(k, a0)
		LEAQ(Mem{Base: k, Index: step0, Scale: 4}, a4)
		MOVQ(q, b)
		MOVQ(dim, n)
		unrolled(label+"dim", n, func(i int) {
			step(acc, Mem{Base: b, Disp: i * rowBytes}, func(r int) Mem {
				return rowAt([]GPVirtual{a0, a4}[r/4], step0, step3, r%4).Offset(i * 4)
			}, nil)
		}, func(steps int) {
			ADDQ(U32(uint32(steps*4)), a0)
			ADDQ(U32(uint32(steps*4)), a4)
			ADDQ(U32(uint32(steps*rowBytes)), b)
		})
		for r := range acc {
			for v, z := range acc[r] {
				VMOVUPS(z, Mem{Base: s, Disp: r*rowBytes + v*64})
				VMAXPS(max[v], z, max[v]) // a NaN score leaves the maximum as it is
			}
		}
		ADDQ(U32(uint32(rows*rowBytes)), s)
		for range rows {
			ADDQ(step0, k)
		}
	})
	for v, z := range max {
		VMOVUPS(z, Mem{Base: top, Disp: v * 64})
	}
	VZEROUPPER()
	RET()
}

// rowAt returns the address of row r of 0 to 3.
func rowAt(base, step1, step3 GPVirtual, r int) Mem {
	switch r {
	case 1:
		return Mem{Base: base, Index: step1, Scale: 1}
	case 2:
		return Mem{Base: base, Index: step1, Scale: 2}
	case 3:
		return Mem{Base: base, Index: step3, Scale: 1}
	}
	return Mem{Base: base}
}

// values emits Oᵀ = alpha Oᵀ + Vᵀ P.
func values(name string, masked bool) {
	signature := "func(o, v *float32, step int, p *float32, keys, vdim int, alpha *float32)"
	if masked {
		signature = "func(o, v *float32, step int, p *float32, keys, vdim int, alpha *float32, masks *uint32)"
	}
	routine(name, signature)
	Doc(name+" sets o[c][i] = alpha[i]*o[c][i] + the sum over keys rows j of V, step elements",
		"apart, of v[j][c]*p[j][i]. o is [vdim][32], p is [keys][32]. keys > 0.")
	if masked {
		Doc(name+" sets o[c][i] = alpha[i]*o[c][i] + the sum over keys rows j of V, step elements",
			"apart, of v[j][c]*p[j][i] for those i whose bit in masks[j] is set: what the others are",
			"multiplied with does not matter, even if it is NaN. o is [vdim][32], p is [keys][32]. keys > 0.")
	}
	o, v, step0, p := param("o"), param("v"), bytes(param("step")), param("p")
	keys, vdim, alpha := param("keys"), param("vdim"), param("alpha")
	var masks GPVirtual
	var opmask []OpmaskPhysical
	if masked {
		masks = param("masks")
		opmask = []OpmaskPhysical{K1, K2}
	}
	step3 := GP64()
	LEAQ(Mem{Base: step0, Index: step0, Scale: 2}, step3)
	alphas := []VecPhysical{Z28, Z29}
	for x, z := range alphas {
		VMOVUPS(Mem{Base: alpha, Disp: x * 64}, z)
	}
	inGroups("dims", vdim, func(rows int, label string) {
		acc := accumulators(rows)
		for r := range acc {
			for x, z := range acc[r] {
				VMULPS(Mem{Base: o, Disp: r*rowBytes + x*64}, alphas[x], z)
			}
		}
		a, b, n := GP64(), GP64(), GP64()
		MOVQ(v, a)
		MOVQ(p, b)
		MOVQ(keys, n)
		var m GPVirtual
		if masked {
			m = GP64()
			MOVQ(masks, m)
		}
		unrolled(label+"keys", n, func(i int) {
			if masked {
				KMOVW(Mem{Base: m, Disp: i * 4}, K1)
				KMOVW(Mem{Base: m, Disp: i*4 + 2}, K2)
			}
			step(acc, Mem{Base: b, Disp: i * rowBytes}, func(r int) Mem { return rowAt(a, step0, step3, i).Offset(r * 4) }, opmask)
		}, func(steps int) {
			if steps == 1 {
				ADDQ(step0, a)
			} else {
				LEAQ(Mem{Base: a, Index: step0, Scale: unroll}, a)
			}
			ADDQ(U32(uint32(steps*rowBytes)), b)
			if masked {
				ADDQ(U32(uint32(steps*4)), m)
			}
		})
		for r := range acc {
			for x, z := range acc[r] {
				VMOVUPS(z, Mem{Base: o, Disp: r*rowBytes + x*64})
			}
		}
		ADDQ(U32(uint32(rows*rowBytes)), o)
		ADDQ(U32(uint32(rows*4)), v)
	})
	VZEROUPPER()
	RET()
}
