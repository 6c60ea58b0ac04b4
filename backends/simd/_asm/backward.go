package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// gradients emits P = 2^(S - LSE) and dS = P (scale dP - delta), both in place.
func gradients() {
	routine("gradientsAVX512", "func(s, dp *float32, masks *uint32, keys int, lse, delta, scale *float32)")
	Doc("gradientsAVX512 sets s[j][i] = 2^(s[j][i] - lse[i]) and then dp[j][i] = s[j][i] * (scale*dp[j][i] -",
		"delta[i]), and both to 0 where bit i of masks[j] is clear, whatever they held. s and dp are",
		"[keys][32]. keys > 0.")
	s, dp, masks, keys := param("s"), param("dp"), param("masks"), param("keys")
	lse, delta, scale := param("lse"), param("delta"), param("scale")
	exp2Constants()
	lses, deltas, by := []VecPhysical{Z16, Z17}, []VecPhysical{Z18, Z19}, Z20
	for v := range vectors {
		VMOVUPS(Mem{Base: lse, Disp: v * 64}, lses[v])
		VMOVUPS(Mem{Base: delta, Disp: v * 64}, deltas[v])
	}
	VBROADCASTSS(Mem{Base: scale}, by)
	scratch := []VecPhysical{Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7}
	opmask := []OpmaskPhysical{K1, K2}
	Label("key")
	for v := range vectors {
		x, n, p, d := scratch[4*v], scratch[4*v+1], scratch[4*v+2], scratch[4*v+3]
		KMOVW(Mem{Base: masks, Disp: v * 2}, opmask[v])
		VMOVUPS(Mem{Base: s, Disp: v * 64}, x)
		VSUBPS(lses[v], x, x)
		exp2(x, n, p)
		VMOVAPS_Z(x, opmask[v], x)
		VMOVUPS(x, Mem{Base: s, Disp: v * 64})
		VMOVUPS(Mem{Base: dp, Disp: v * 64}, d)
		VFMSUB213PS(deltas[v], by, d)
		VMULPS_Z(d, x, opmask[v], d)
		VMOVUPS(d, Mem{Base: dp, Disp: v * 64})
	}
	ADDQ(U32(rowBytes), s)
	ADDQ(U32(rowBytes), dp)
	ADDQ(Imm(4), masks)
	DECQ(keys)
	JNZ(LabelRef("key"))
	VZEROUPPER()
	RET()
}

// outer emits C += A B with columns of B and C in the lanes.
func outer() {
	routine("outerAVX512", "func(c *float32, cStep int, a, b *float32, bStep, rows, n int, columns uint32)")
	Doc("outerAVX512 adds to c[r][x] the sum over n rows i of B of a[r][i]*b[i][x], for rows rows of A and",
		"the 32 columns x whose bit in columns is set; of B it reads no others. Rows of C and B lie cStep and",
		"bStep elements apart, a is [rows][32]. n > 0.")
	c, cStep, a, b, bStep := param("c"), bytes(param("cStep")), param("a"), param("b"), bytes(param("bStep"))
	rows, n := param("rows"), param("n")
	columns := Load(Param("columns"), GP32()).(GPVirtual)
	KMOVW(columns, K1)
	SHRL(Imm(16), columns)
	KMOVW(columns, K2)
	opmask := []OpmaskPhysical{K1, K2}
	bStep3 := GP64()
	LEAQ(Mem{Base: bStep, Index: bStep, Scale: 2}, bStep3)
	inGroups("rows", rows, func(rows int, label string) {
		acc := accumulators(rows)
		at := GP64()
		MOVQ(c, at)
		for r := range acc {
			for v, z := range acc[r] {
				VMOVUPS_Z(Mem{Base: at, Disp: v * 64}, opmask[v], z)
			}
			ADDQ(cStep, at)
		}
		rowB, k := GP64(), GP64()
		MOVQ(b, rowB)
		MOVQ(n, k)
		rowA := GP64()
		MOVQ(a, rowA)
		unrolled(label+"i", k, func(i int) {
			for v, z := range lanesB {
				VMOVUPS_Z(rowAt(rowB, bStep, bStep3, i).Offset(v*64), opmask[v], z)
			}
			for r := range acc {
				x := broadcasts[r%len(broadcasts)]
				VBROADCASTSS(Mem{Base: rowA, Disp: r*rowBytes + i*4}, x)
				for v, z := range lanesB {
					VFMADD231PS(x, z, acc[r][v])
				}
			}
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
				VMOVUPS(z, opmask[v], Mem{Base: c, Disp: v * 64})
			}
			ADDQ(cStep, c)
		}
		ADDQ(U32(uint32(rows*rowBytes)), a)
	})
	VZEROUPPER()
	RET()
}
