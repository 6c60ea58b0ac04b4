package main

import (
	"math"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// gradients emits P = e^(scale S - LSE) and dS = scale P (dP - delta), or without
// the scale where dS will be rounded.
func gradients() {
	scaled := "scale*"
	if bf16 {
		scaled = ""
	}
	arithmetic("gradients", "func(s, dp, ds *float32, dsStep int, masks *uint32, rows int, lse, delta *float32, scale float32)",
		"sets s[i][j] = e^(scale*s[i][j] - lse[i]) and ds[i][j] = "+scaled+"s[i][j] * (dp[i][j] - delta[i]),",
		"and both to 0 where bit j of masks[i] is clear, whatever they held. s and dp are [rows][LANES],",
		"rows of ds lie dsStep elements apart. rows > 0.")
	s, dp, ds, dsStep := param("s"), param("dp"), param("ds"), bytes(param("dsStep"))
	masks, rows, lse, delta := param("masks"), param("rows"), param("lse"), param("delta")
	exp2Constants()
	x, n, p, d, y, by, base2, high := registers[0], registers[1], registers[2], registers[3], registers[4], registers[5], registers[6], registers[7]
	floatParam("scale", by)
	constant(math.Log2E, base2)
	if isa != "AVX512" {
		constant(128, high)
	}
	Label("row")
	for v := range vectors {
		at := func(base GPVirtual) Mem { return part(Mem{Base: base}, v) }
		VMOVUPS(at(s), x)
		VBROADCASTSS(Mem{Base: lse}, y)
		VFMSUB213PS(y, by, x)
		VMULPS(base2, x, x) // after the difference, so that large scores lose nothing
		if isa != "AVX512" {
			VMINPS(x, high, x) // an LSE may be wrong. In this order it returns x when x is NaN
		}
		exp2(x, n, p)
		VMOVUPS(at(dp), d)
		VBROADCASTSS(Mem{Base: delta}, y)
		VSUBPS(y, d, d)
		if !bf16 {
			VMULPS(by, d, d)
		}
		if isa == "AVX512" {
			KMOVW(Mem{Base: masks, Disp: v * 2}, K1)
			VMOVAPS_Z(x, K1, x)
			VMULPS_Z(d, x, K1, d)
		} else {
			laneMask(Mem{Base: masks}, v, y)
			VANDPS(y, x, x)
			VMULPS(d, x, d)
			VANDPS(y, d, d)
		}
		VMOVUPS(x, at(s))
		VMOVUPS(d, at(ds))
	}
	ADDQ(U32(uint32(rowBytes)), s)
	ADDQ(U32(uint32(rowBytes)), dp)
	ADDQ(dsStep, ds)
	for _, p := range []GPVirtual{masks, lse, delta} {
		ADDQ(Imm(4), p)
	}
	DECQ(rows)
	JNZ(LabelRef("row"))
	done()
}

// dots emits delta. It adds in the order of dP, so that dP - delta is 0 for
// a row that sees one key.
func dots() {
	rows := "dim"
	if bf16 {
		rows = "pairs"
		arithmetic("dots", "func(sum *float32, a, b *uint32, pairs int)",
			"sets sum[i] to the sum over c of a[c][i]*b[c][i], products of pairs. a and b are",
			"[pairs][LANES]. pairs > 0.")
	} else {
		arithmetic("dots", "func(sum, a, b *float32, dim int)",
			"sets sum[i] to the sum over c of a[c][i]*b[c][i]. a and b are [dim][LANES]. dim > 0.")
	}
	sum, a, b, dim := param("sum"), param("a"), param("b"), param(rows)
	acc, x, y, first := registers[:vectors], registers[vectors], registers[vectors+1], registers[vectors+2:][:vectors]
	n, left := dim, GP64()
	if !bf16 {
		n = GP64()
		firstPart(dim, n, left)
		Label("part")
	}
	for _, z := range acc {
		VXORPS(z, z, z)
	}
	if !bf16 {
		TESTQ(n, n)
		JZ(LabelRef("next"))
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
	DECQ(n)
	JNZ(LabelRef("column"))
	if !bf16 {
		Label("next")
		TESTQ(left, left)
		JZ(LabelRef("add"))
		MOVQ(left, n)
		XORQ(left, left)
		for v, z := range acc {
			VMOVAPS(z, first[v])
		}
		JMP(LabelRef("part"))
		Label("add")
		for v, z := range acc {
			VADDPS(first[v], z, z)
		}
	}
	for v, z := range acc {
		VMOVUPS(z, part(Mem{Base: sum}, v))
	}
	done()
}

// declareProduct begins product.
func declareProduct(transposed, masked bool) {
	name, element, shape := "addProduct", "a[r][i]", "[rows][n]"
	if transposed {
		name, element, shape = "addProductT", "a[i][r]", "[n][rows]"
	}
	signature, does := "c *float32, cStep int, a *float32, aStep int, b *float32, bStep, rows, n int", ""
	if bf16 {
		signature, does = "c *float32, cStep int, a *uint32, aStep int, b *uint32, bStep, rows, n int", "Elements of A and B are pairs. "
		if !transposed {
			signature, does = strings.Replace(signature, "a *uint32", "a *uint16", 1), does+"Rows of A lie aStep halves apart. "
		}
	}
	if masked {
		arithmetic(name+"Masked", "func("+signature+", columns uint32)",
			"is "+name+suffix+" for those columns whose bit in columns is set; of B it reads no others,",
			"and of C it leaves them.")
	} else {
		arithmetic(name, "func("+signature+")",
			"adds to c[r][x] the sum over n rows i of B of "+element+"*b[i][x], for rows rows of C",
			"and LANES columns x. A is "+shape+". Rows lie the steps apart, in elements. "+does+"n > 0.")
	}
}

// product emits C += A B, or with A transposed, with columns of B and C in the
// lanes: whole vectors of them or with opmasks. A masked load takes the ports of
// a multiply-add. The product is summed from zero, since a sum of few products is
// rounded in smaller units than C; that of bf16 begins with C, which is for results
// of fewer digits.
func product(transposed, masked bool) {
	declareProduct(transposed, masked)
	if masked {
		columns := Load(Param("columns"), GP32()).(GPVirtual)
		KMOVW(columns, K1)
		SHRL(Imm(16), columns)
		KMOVW(columns, K2)
	}
	toBytesA := bytes
	if bf16 && !transposed {
		toBytesA = bytes16
	}
	c, cStep, a, aStep := param("c"), bytes(param("cStep")), param("a"), toBytesA(param("aStep"))
	b, bStep, rows, n := param("b"), bytes(param("bStep")), param("rows"), param("n")
	aStep3, bStep3 := GP64(), GP64()
	LEAQ(Mem{Base: aStep, Index: aStep, Scale: 2}, aStep3)
	LEAQ(Mem{Base: bStep, Index: bStep, Scale: 2}, bStep3)
	inGroups("rows", rows, func(rows int, label string) {
		acc := accumulators(rows)
		at, a0, a4, rowB, k := GP64(), GP64(), GP64(), GP64(), GP64()
		MOVQ(c, at)
		if bf16 {
			for _, row := range acc {
				for v, z := range row {
					loadColumns(Mem{Base: at}, v, z, masked)
				}
				ADDQ(cStep, at)
			}
		} else {
			clearSums(acc)
		}
		for range acc { // the rows to be loaded next, which another core may have written
			for line := 0; line < rowBytes; line += 64 {
				PREFETCHT0(Mem{Base: at, Disp: line})
			}
			ADDQ(cStep, at)
		}
		MOVQ(a, a0)
		if !transposed {
			LEAQ(Mem{Base: a, Index: aStep, Scale: 4}, a4)
		}
		MOVQ(b, rowB)
		MOVQ(n, k)
		unrolled(label+"i", k, func(i int) {
			for v, z := range lanesB {
				loadColumns(rowAt(rowB, bStep, bStep3, i), v, z, masked)
			}
			multiply(acc, func(r int) Mem {
				if transposed {
					return rowAt(a0, aStep, aStep3, i).Offset(r * 4)
				}
				return rowAt([]GPVirtual{a0, a4}[r/4], aStep, aStep3, r%4).Offset(i * 4)
			})
		}, func(steps int) {
			advance(rowB, bStep, steps)
			if transposed {
				advance(a0, aStep, steps)
				return
			}
			ADDQ(U32(uint32(steps*4)), a0)
			ADDQ(U32(uint32(steps*4)), a4)
		})
		for _, row := range acc {
			for v, z := range row {
				if !bf16 {
					addColumns(Mem{Base: c}, v, z, masked)
				}
				storeColumns(z, v, Mem{Base: c}, masked)
			}
			ADDQ(cStep, c)
		}
		if transposed {
			ADDQ(U32(uint32(rows*4)), a)
			return
		}
		for range rows {
			ADDQ(aStep, a)
		}
	})
	done()
}

// advance moves a pointer by one or unroll steps.
func advance(p, step GPVirtual, steps int) {
	if steps == 1 {
		ADDQ(step, p)
	} else {
		LEAQ(Mem{Base: p, Index: step, Scale: unroll}, p)
	}
}

// loadColumns loads vector v of the row of columns at m.
func loadColumns(m Mem, v int, z VecPhysical, masked bool) {
	if masked {
		VMOVUPS_Z(part(m, v), []OpmaskPhysical{K1, K2}[v], z)
	} else {
		VMOVUPS(part(m, v), z)
	}
}

// addColumns adds vector v of the row of columns at m.
func addColumns(m Mem, v int, z VecPhysical, masked bool) {
	if masked {
		VADDPS(part(m, v), z, []OpmaskPhysical{K1, K2}[v], z)
	} else {
		VADDPS(part(m, v), z, z)
	}
}

// storeColumns stores vector v of the row of columns at m.
func storeColumns(z VecPhysical, v int, m Mem, masked bool) {
	if masked {
		VMOVUPS(z, []OpmaskPhysical{K1, K2}[v], part(m, v))
	} else {
		VMOVUPS(z, part(m, v))
	}
}
