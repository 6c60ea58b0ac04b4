package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// accumulators returns the register tile: rows x vectors.
func accumulators(rows int) [][]VecPhysical {
	acc := make([][]VecPhysical, rows)
	for r := range acc {
		acc[r] = registers[r*vectors : (r+1)*vectors]
	}
	return acc
}

func clearSums(acc [][]VecPhysical) {
	for _, row := range acc {
		for _, z := range row {
			VXORPS(z, z, z)
		}
	}
}

// step multiplies one row of lanes, at b, with one element for each row of the
// tile, and adds the products.
func step(acc [][]VecPhysical, b Mem, element func(r int) Mem) {
	for v, z := range lanesB {
		VMOVUPS(part(b, v), z)
	}
	multiply(acc, element)
}

// multiply adds the products of the row in lanesB and an element for each row of
// the tile.
func multiply(acc [][]VecPhysical, element func(r int) Mem) {
	for r := range acc {
		x := broadcasts[r%len(broadcasts)]
		VBROADCASTSS(element(r), x)
		for v, z := range lanesB {
			multiplyAdd(x, z, acc[r][v])
		}
	}
}

// multiplyAdd adds x*y to sum, in the type of the routines.
func multiplyAdd(x, y, sum VecPhysical) {
	if bf16 {
		VDPBF16PS(x, y, sum)
	} else {
		VFMADD231PS(x, y, sum)
	}
}

// maskedStep is step in the lanes whose bits are set in the word at mask. The
// elements may be NaN. Without opmasks an element becomes 0 in the other lanes,
// which must be finite in b.
func maskedStep(acc [][]VecPhysical, b, mask Mem, element func(r int) Mem) {
	if isa == "AVX512" {
		opmask := []OpmaskPhysical{K1, K2}
		for v, z := range lanesB {
			KMOVW(mask.Offset(v*2), opmask[v])
			VMOVUPS(part(b, v), z)
		}
		for r := range acc {
			x := broadcasts[r%len(broadcasts)]
			VBROADCASTSS(element(r), x)
			for v, z := range lanesB {
				VFMADD231PS(x, z, opmask[v], acc[r][v])
			}
		}
		return
	}
	visible := lanesB
	for v, z := range visible {
		laneMask(mask, v, z)
	}
	x, y := broadcasts[0], broadcasts[1]
	for r := range acc {
		VBROADCASTSS(element(r), x)
		VANDPS(x, visible[0], y)
		VFMADD231PS(part(b, 0), y, acc[r][0])
		VANDPS(x, visible[1], x)
		VFMADD231PS(part(b, 1), x, acc[r][1])
	}
}

// inGroups emits code for as many groups of the largest size as count holds and
// then for the remainders. body handles a group and leaves count alone.
//
// Of groups of 6, 4, 2 and 1 rows, 8 rows are two of 4: groups of 2 have too few
// sums to hide the latency of the multiply-add.
func inGroups(name string, count GPVirtual, body func(rows int, label string)) {
	for i, rows := range groups {
		label := fmt.Sprintf("%s%d", name, rows)
		Label(label)
		CMPQ(count, Imm(uint64(rows)))
		JL(LabelRef(label + "done"))
		if i == 0 && rows < 2*groups[1] {
			CMPQ(count, Imm(uint64(2*groups[1])))
			JE(LabelRef(label + "done"))
		}
		body(rows, label)
		SUBQ(U32(uint32(rows)), count)
		JMP(LabelRef(label))
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

// declareScores begins scores. It returns how to count steps of K.
func declareScores(parts bool) (toBytes func(Register) GPVirtual) {
	switch {
	case bf16:
		arithmetic("scores", "func(s *float32, k *uint16, step int, q *uint32, dim, keys int, top *float32)",
			"sets s[j][i] = dot(k[j], q[i]) for keys rows of K, step elements apart,",
			"and raises top[i] to the largest of them. q is [dim/2][LANES] of pairs, with 0 in the last half pair",
			"of an odd dim. s is [keys][LANES]. dim > 0.")
		return bytes16
	case parts:
		arithmetic("scoresInParts", "func(s, k *float32, step int, q *float32, dim, keys int, top, ahead *float32)",
			"is scores with dot products that are the sums of those of two halves.")
	default:
		arithmetic("scores", "func(s, k *float32, step int, q *float32, dim, keys int, top, ahead *float32)",
			"sets s[j][i] = dot(k[j], q[i]) for keys rows of K, step elements apart,",
			"and raises top[i] to the largest of them. q is [dim][LANES], s is [keys][LANES]. dim > 0. Meanwhile",
			"it brings memory from ahead on into the second-level cache, 2*dim bytes for each key, or some more.")
	}
	return bytes
}

// firstPart emits how the columns of a dot product are cut in parts: n of them, then left
// more. Either sum is rounded in smaller units than one of all. Of few columns n is 0.
func firstPart(dim, n, left GPVirtual) {
	MOVQ(dim, n)
	SHRQ(Imm(1), n)
	ANDQ(I32(-unroll), n)
	MOVQ(dim, left)
	SUBQ(n, left)
}

// scores emits S = K Qᵀ with the running maximum in the store. Where S is dP, the parts
// matter: delta is subtracted from it, which is about as large.
func scores(parts bool) {
	toBytes := declareScores(parts)
	s, k, step0 := param("s"), param("k"), toBytes(param("step"))
	q, keys, top := param("q"), param("keys"), param("top")
	var ahead GPVirtual
	if !bf16 {
		ahead = param("ahead")
	}
	step3 := GP64()
	LEAQ(Mem{Base: step0, Index: step0, Scale: 2}, step3)
	inGroups("keys", keys, func(rows int, label string) {
		acc := accumulators(rows)
		clearSums(acc)
		a0, a4, b, n, left := GP64(), GP64(), GP64(), GP64(), GP64()
		MOVQ(k, a0)
		LEAQ(Mem{Base: k, Index: step0, Scale: 4}, a4)
		MOVQ(q, b)
		dim := param("dim")
		MOVQ(dim, n)
		if bf16 {
			SHRQ(Imm(1), n)
		}
		if parts {
			firstPart(dim, n, left)
			Label(label + "part")
		}
		element := func(r int) Mem { return rowAt([]GPVirtual{a0, a4}[r/4], step0, step3, r%4) }
		unrolled(label+"dim", n, func(i int) {
			if i == 0 && !bf16 && rows == groups[0] {
				PREFETCHT1(Mem{Base: ahead})
				ADDQ(Imm(64), ahead)
			}
			step(acc, Mem{Base: b, Disp: i * rowBytes}, func(r int) Mem { return element(r).Offset(i * 4) })
		}, func(steps int) {
			ADDQ(U32(uint32(steps*4)), a0)
			ADDQ(U32(uint32(steps*4)), a4)
			ADDQ(U32(uint32(steps*rowBytes)), b)
		})
		if bf16 {
			halfStep(label, dim, acc, Mem{Base: b}, element)
		}
		if parts {
			addParts(label, n, left, s, acc)
		}
		storeScores(s, top, acc)
		ADDQ(U32(uint32(rows*rowBytes)), s)
		for range rows {
			ADDQ(step0, k)
		}
	})
	done()
}

func storeScores(s, top GPVirtual, acc [][]VecPhysical) {
	max := lanesB
	for v, z := range max {
		VMOVUPS(part(Mem{Base: top}, v), z)
	}
	for r := range acc {
		for v, z := range acc[r] {
			VMOVUPS(z, part(Mem{Base: s, Disp: r * rowBytes}, v))
			VMAXPS(max[v], z, max[v]) // a NaN score leaves the maximum as it is
		}
	}
	for v, z := range max {
		VMOVUPS(z, part(Mem{Base: top}, v))
	}
}

// addParts emits what follows a part of the columns: the first one's sums are stored, and
// added to the second one's.
func addParts(label string, n, left, s GPVirtual, acc [][]VecPhysical) {
	each := func(f func(z VecPhysical, m Mem)) {
		for r := range acc {
			for v, z := range acc[r] {
				f(z, part(Mem{Base: s, Disp: r * rowBytes}, v))
			}
		}
	}
	TESTQ(left, left)
	JZ(LabelRef(label + "add"))
	MOVQ(left, n)
	XORQ(left, left)
	each(func(z VecPhysical, m Mem) { VMOVUPS(z, m) })
	clearSums(acc)
	JMP(LabelRef(label + "part"))
	Label(label + "add")
	each(func(z VecPhysical, m Mem) { VADDPS(m, z, z) })
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

const nilAlpha = "A nil alpha counts as 0, whatever o held."

// declareValues begins values. It returns what the rows of P are.
func declareValues(masked bool) (rowsOfP string) {
	switch {
	case bf16:
		arithmetic("addValues", "func(o *float32, v *uint32, step int, p *uint32, pairs, vdim int, alpha *float32)",
			"sets o[c][i] = alpha[i]*o[c][i] + the sum over pairs of keys j of v[j][c]*p[j][i], a product of",
			"pairs. Rows of v lie step pairs apart. o is [vdim][LANES], p is [pairs][LANES]. pairs > 0.", nilAlpha)
		return "pairs"
	case masked:
		arithmetic("addValuesMasked", "func(o, v *float32, step int, p *float32, keys, vdim int, alpha *float32, masks *uint32)",
			"sets o[c][i] = alpha[i]*o[c][i] + the sum over keys rows j of V, step elements",
			"apart, of v[j][c]*p[j][i] for those i whose bit in masks[j] is set. For the others p[j][i] must be 0,",
			"and v[j][c] does not matter, even if it is NaN. o is [vdim][LANES], p is [keys][LANES]. keys > 0.", nilAlpha)
	default:
		arithmetic("addValues", "func(o, v *float32, step int, p *float32, keys, vdim int, alpha *float32)",
			"sets o[c][i] = alpha[i]*o[c][i] + the sum over keys rows j of V, step elements",
			"apart, of v[j][c]*p[j][i]. o is [vdim][LANES], p is [keys][LANES]. keys > 0.", nilAlpha)
	}
	return "keys"
}

// values emits Oᵀ = alpha Oᵀ + Vᵀ P. The keys are summed from zero, since a sum of few
// keys is rounded in smaller units than O.
func values(masked bool) {
	rowsOfP := declareValues(masked)
	var masks GPVirtual
	if masked {
		masks = param("masks")
	}
	o, v, step0, p := param("o"), param("v"), bytes(param("step")), param("p")
	keys, vdim, alpha := param(rowsOfP), param("vdim"), param("alpha")
	step3 := GP64()
	LEAQ(Mem{Base: step0, Index: step0, Scale: 2}, step3)
	inGroups("dims", vdim, func(rows int, label string) {
		acc := accumulators(rows)
		clearSums(acc)
		a, b, n, m := GP64(), GP64(), GP64(), GP64()
		MOVQ(v, a)
		MOVQ(p, b)
		MOVQ(keys, n)
		if masked {
			MOVQ(masks, m)
		}
		unrolled(label+"keys", n, func(i int) {
			lanes := Mem{Base: b, Disp: i * rowBytes}
			element := func(r int) Mem { return rowAt(a, step0, step3, i).Offset(r * 4) }
			if masked {
				maskedStep(acc, lanes, Mem{Base: m, Disp: i * 4}, element)
			} else {
				step(acc, lanes, element)
			}
		}, func(steps int) {
			advance(a, step0, steps)
			ADDQ(U32(uint32(steps*rowBytes)), b)
			if masked {
				ADDQ(U32(uint32(steps*4)), m)
			}
		})
		TESTQ(alpha, alpha)
		JZ(LabelRef(label + "set"))
		for x, z := range lanesB {
			VMOVUPS(part(Mem{Base: alpha}, x), z)
		}
		for r := range acc {
			for x, z := range acc[r] {
				VFMADD231PS(part(Mem{Base: o, Disp: r * rowBytes}, x), lanesB[x], z)
			}
		}
		Label(label + "set")
		for r := range acc {
			for x, z := range acc[r] {
				VMOVUPS(z, part(Mem{Base: o, Disp: r * rowBytes}, x))
			}
		}
		ADDQ(U32(uint32(rows*rowBytes)), o)
		ADDQ(U32(uint32(rows*4)), v)
	})
	done()
}

// addSum emits the sum of two parts of the keys.
func addSum() {
	arithmetic("addSum", "func(sum, x *float32, rows int, alpha *float32)",
		"sets sum[c][i] = alpha[i]*sum[c][i] + x[c][i]. Both are [rows][LANES]. rows > 0.")
	sum, x, rows, alpha := param("sum"), param("x"), param("rows"), param("alpha")
	by, z := registers[0:2], registers[2:4]
	for v := range vectors {
		VMOVUPS(part(Mem{Base: alpha}, v), by[v])
	}
	Label("row")
	for v := range vectors {
		VMOVUPS(part(Mem{Base: x}, v), z[v])
		VFMADD231PS(part(Mem{Base: sum}, v), by[v], z[v])
		VMOVUPS(z[v], part(Mem{Base: sum}, v))
	}
	ADDQ(U32(uint32(rowBytes)), sum)
	ADDQ(U32(uint32(rowBytes)), x)
	DECQ(rows)
	JNZ(LabelRef("row"))
	done()
}
