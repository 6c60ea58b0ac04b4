package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// gradients emits P = e^(scale S - LSE) and dS = P (dP - delta), both in place.
func gradients() {
	routine("gradients", "func(s, dp *float32, masks *uint32, keys int, lse, delta *float32, scale float32)",
		"sets s[j][i] = e^(scale*s[j][i] - lse[i]) and then dp[j][i] = s[j][i] * (dp[j][i] - delta[i]),",
		"and both to 0 where bit i of masks[j] is clear, whatever they held. s and dp are [keys][LANES].",
		"keys > 0.")
	s, dp, masks, keys := param("s"), param("dp"), param("masks"), param("keys")
	lse, delta := param("lse"), param("delta")
	exp2Constants()
	x, n, p, d, visible, by, base2 := registers[0], registers[1], registers[2], registers[3], registers[4], registers[5], registers[6]
	floatParam("scale", by)
	constant(math.Log2E, base2)
	Label("key")
	for v := range vectors {
		at := func(base GPVirtual) Mem { return part(Mem{Base: base}, v) }
		VMOVUPS(at(s), x)
		VFMSUB213PS(at(lse), by, x)
		VMULPS(base2, x, x) // after the difference, so that large scores lose nothing
		exp2(x, n, p)
		VMOVUPS(at(dp), d)
		VSUBPS(at(delta), d, d)
		if isa == "AVX512" {
			KMOVW(Mem{Base: masks, Disp: v * 2}, K1)
			VMOVAPS_Z(x, K1, x)
			VMULPS_Z(d, x, K1, d)
		} else {
			laneMask(Mem{Base: masks}, v, visible)
			VANDPS(visible, x, x)
			VMULPS(d, x, d)
			VANDPS(visible, d, d)
		}
		VMOVUPS(x, at(s))
		VMOVUPS(d, at(dp))
	}
	ADDQ(U32(uint32(rowBytes)), s)
	ADDQ(U32(uint32(rowBytes)), dp)
	ADDQ(Imm(4), masks)
	DECQ(keys)
	JNZ(LabelRef("key"))
	VZEROUPPER()
	RET()
}

// dots emits delta. It adds in the order of scores, so that dP - delta is 0 for
// a row that sees one key.
func dots() {
	rows := "dim"
	if bf16 {
		rows = "pairs"
		routine("dots", "func(sum *float32, a, b *uint32, pairs int)",
			"sets sum[i] to the sum over c of a[c][i]*b[c][i], products of pairs. a and b are",
			"[pairs][LANES]. pairs > 0.")
	} else {
		routine("dots", "func(sum, a, b *float32, dim int)",
			"sets sum[i] to the sum over c of a[c][i]*b[c][i]. a and b are [dim][LANES]. dim > 0.")
	}
	sum, a, b, dim := param("sum"), param("a"), param("b"), param(rows)
	acc, x, y := registers[:vectors], registers[vectors], registers[vectors+1]
	for _, z := range acc {
		VXORPS(z, z, z)
	}
	Label("column")
	for v, z := range acc {
		VMOVUPS(part(Mem{Base: a}, v), x)
		if bf16 {
			VMOVUPS(part(Mem{Base: b}, v), y)
			VDPBF16PS(x, y, z)
		} else {
			VFMADD231PS(part(Mem{Base: b}, v), x, z)
		}
	}
	ADDQ(U32(uint32(rowBytes)), a)
	ADDQ(U32(uint32(rowBytes)), b)
	DECQ(dim)
	JNZ(LabelRef("column"))
	for v, z := range acc {
		VMOVUPS(z, part(Mem{Base: sum}, v))
	}
	VZEROUPPER()
	RET()
}

// outer emits C += A B with columns of B and C in the lanes.
func outer() {
	rowsOfB, rowBytesA := "n", rowBytes
	switch {
	case bf16:
		rowsOfB, rowBytesA = "pairs", rowBytes/2
		routine("outer", "func(c *float32, cStep int, a *uint16, b *uint32, bStep, rows, pairs int, columns uint32)",
			"adds to c[r][x] the sum over pairs i of a[r][2i]*b[i][x] and its neighbors a[r][2i+1] and the",
			"other half of b[i][x], for rows rows of A and the LANES columns x whose bit in columns is set; of B it",
			"reads no others. Rows of C and B lie cStep float32 and bStep pairs apart, a is [rows][LANES]. pairs > 0.")
		opmaskParam("columns")
	case isa == "AVX512":
		routine("outer", "func(c *float32, cStep int, a, b *float32, bStep, rows, n int, columns uint32)",
			"adds to c[r][x] the sum over n rows i of B of a[r][i]*b[i][x], for rows rows of A and",
			"the LANES columns x whose bit in columns is set; of B it reads no others. Rows of C and B lie",
			"cStep and bStep elements apart, a is [rows][LANES]. n > 0.")
		opmaskParam("columns")
	default:
		routine("outer", "func(c *float32, cStep int, a, b *float32, bStep, rows, n int, _ uint32)",
			"adds to c[r][x] the sum over n rows i of B of a[r][i]*b[i][x], for rows rows of A and",
			"LANES columns x. Rows of C and B lie cStep and bStep elements apart, a is [rows][LANES]. n > 0.")
	}
	c, cStep, a, b, bStep := param("c"), bytes(param("cStep")), param("a"), param("b"), bytes(param("bStep"))
	rows, n := param("rows"), param(rowsOfB)
	bStep3 := GP64()
	LEAQ(Mem{Base: bStep, Index: bStep, Scale: 2}, bStep3)
	inGroups("rows", rows, func(rows int, label string) {
		acc := accumulators(rows)
		at, rowA, rowB, k := GP64(), GP64(), GP64(), GP64()
		MOVQ(c, at)
		for _, row := range acc {
			for v, z := range row {
				loadColumns(part(Mem{Base: at}, v), v, z)
			}
			ADDQ(cStep, at)
		}
		MOVQ(a, rowA)
		MOVQ(b, rowB)
		MOVQ(n, k)
		unrolled(label+"i", k, func(i int) {
			for v, z := range lanesB {
				loadColumns(part(rowAt(rowB, bStep, bStep3, i), v), v, z)
			}
			multiply(acc, func(r int) Mem { return Mem{Base: rowA, Disp: r*rowBytesA + i*4} })
		}, func(steps int) {
			if steps == 1 {
				ADDQ(bStep, rowB)
			} else {
				LEAQ(Mem{Base: rowB, Index: bStep, Scale: unroll}, rowB)
			}
			ADDQ(U32(uint32(steps*4)), rowA)
		})
		for _, row := range acc {
			for v, z := range row {
				storeColumns(z, v, part(Mem{Base: c}, v))
			}
			ADDQ(cStep, c)
		}
		ADDQ(U32(uint32(rows*rowBytesA)), a)
	})
	VZEROUPPER()
	RET()
}

// opmaskParam loads a word of lanes into K1 and K2.
func opmaskParam(name string) {
	word := Load(Param(name), GP32()).(GPVirtual)
	KMOVW(word, K1)
	SHRL(Imm(16), word)
	KMOVW(word, K2)
}

// loadColumns loads vector v of a row of columns.
func loadColumns(m Mem, v int, z VecPhysical) {
	if isa == "AVX512" {
		VMOVUPS_Z(m, []OpmaskPhysical{K1, K2}[v], z)
	} else {
		VMOVUPS(m, z)
	}
}

// storeColumns stores vector v of a row of columns.
func storeColumns(z VecPhysical, v int, m Mem) {
	if isa == "AVX512" {
		VMOVUPS(z, []OpmaskPhysical{K1, K2}[v], m)
	} else {
		VMOVUPS(z, m)
	}
}
