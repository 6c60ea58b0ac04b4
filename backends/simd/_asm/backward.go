package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// gradients emits the routine that computes P = e^(scale S - LSE) and dS = scale P (dP - delta).
// The variant for AVX512-BF16 omits the factor scale of dS: its kernels instead multiply dK and dQ
// by the scale at the end.
func (g *generator) gradients() {
	scaled := "scale·"
	if g.bf16 {
		scaled = ""
	}
	g.arithmetic("gradients", "func(s, dp, ds *float32, dsStep int, masks *uint32, rows int, lse, delta *float32, scale float32)",
		"computes weights and gradients of scores. For query row i < rows and key",
		"j < LANES:", "", "  - w = e^(scale·s[i][j] - lse[i]), the weight",
		"  - ds[i][j] = "+scaled+"w·(dp[i][j] - delta[i])",
		"  - s[i][j] = w", "",
		"If bit j of masks[i] is clear, the routine sets s[i][j] and ds[i][j] to 0, even if s or dp is NaN",
		"there. s and dp are [rows][LANES]. Rows of ds are dsStep elements apart. rows > 0.")
	s, dp, ds, dsStep := param("s"), param("dp"), param("ds"), bytes(param("dsStep"))
	masks, rows, lse, delta := param("masks"), param("rows"), param("lse"), param("delta")
	x := g.newGradientLanes()
	Label("row")
	for v := range vectors {
		at := func(base GPVirtual) Mem { return g.part(Mem{Base: base}, v) }
		VMOVUPS(at(s), x.x)
		VBROADCASTSS(Mem{Base: lse}, x.y)
		x.weights()
		VMOVUPS(at(dp), x.d)
		VBROADCASTSS(Mem{Base: delta}, x.y)
		VSUBPS(x.y, x.d, x.d)
		x.gradients(Mem{Base: masks}, v)
		VMOVUPS(x.x, at(s))
		VMOVUPS(x.d, at(ds))
	}
	ADDQ(U32(uint32(g.rowBytes)), s)
	ADDQ(U32(uint32(g.rowBytes)), dp)
	ADDQ(dsStep, ds)
	for _, p := range []GPVirtual{masks, lse, delta} {
		ADDQ(Imm(4), p)
	}
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}

// gradientsT emits the variant of gradients with query rows in the lanes.
func (g *generator) gradientsT() {
	g.arithmetic("gradientsT", "func(s, dp *float32, masks *uint32, keys int, lse, delta *float32, scale float32)",
		"computes weights and gradients of scores, as gradients"+g.suffix+" does, but with query rows in the",
		"lanes. For key i < keys and query row j < LANES:", "", "  - w = e^(scale·s[i][j] - lse[j]), the weight",
		"  - dp[i][j] = scale·w·(dp[i][j] - delta[j])",
		"  - s[i][j] = w", "",
		"If bit j of masks[i] is clear, the routine sets s[i][j] and dp[i][j] to 0, even if they are NaN.",
		"s and dp are [keys][LANES]. lse and delta are [LANES]. keys > 0.")
	s, dp, masks, keys, lse, delta := param("s"), param("dp"), param("masks"), param("keys"), param("lse"), param("delta")
	x := g.newGradientLanes()
	Label("key")
	for v := range vectors {
		at := func(base GPVirtual) Mem { return g.part(Mem{Base: base}, v) }
		VMOVUPS(at(s), x.x)
		VMOVUPS(at(lse), x.y)
		x.weights()
		VMOVUPS(at(dp), x.d)
		VSUBPS(at(delta), x.d, x.d)
		x.gradients(Mem{Base: masks}, v)
		VMOVUPS(x.x, at(s))
		VMOVUPS(x.d, at(dp))
	}
	for _, p := range []GPVirtual{s, dp} {
		ADDQ(U32(uint32(g.rowBytes)), p)
	}
	ADDQ(Imm(4), masks)
	DECQ(keys)
	JNZ(LabelRef("key"))
	g.done()
}

// gradientLanes holds the registers of a vector of weights and gradients.
type gradientLanes struct {
	*generator
	x, n, p, d, y   VecPhysical // x: scores, then weights; d: dP - delta, then dS; y: LSE
	by, base2, high VecPhysical
}

// newGradientLanes emits the constants of the routines gradients and gradientsT.
func (g *generator) newGradientLanes() *gradientLanes {
	r := g.registers
	x := &gradientLanes{generator: g, x: r[0], n: r[1], p: r[2], d: r[3], y: r[4], by: r[5], base2: r[6], high: r[7]}
	g.powerConstants()
	floatParam("scale", x.by)
	g.constant(math.Log2E, x.base2)
	if !g.avx512 {
		g.constant(128*math.Ln2, x.high)
	}
	return x
}

// weights emits x = e^(by·x - y).
func (g *gradientLanes) weights() {
	VFMSUB213PS(g.y, g.by, g.x)
	if !g.avx512 {
		VMINPS(g.x, g.high, g.x) // a wrong LSE may make x too large for power. This operand order keeps NaN
	}
	g.power(g.x, g.base2, g.n, g.p) // power multiplies after the subtraction, so that large scores lose no digits
}

// gradients emits d = by·x·d, and x = d = 0 in the lanes that vector v of a mask hides.
func (g *gradientLanes) gradients(mask Mem, v int) {
	if !g.bf16 {
		VMULPS(g.by, g.d, g.d)
	}
	if g.avx512 {
		KMOVW(mask.Offset(v*2), K1)
		VMOVAPS_Z(g.x, K1, g.x)
		VMULPS_Z(g.d, g.x, K1, g.d)
		return
	}
	g.laneMask(mask, v, g.y)
	VANDPS(g.y, g.x, g.x)
	VMULPS(g.d, g.x, g.d)
	VANDPS(g.y, g.d, g.d)
}

// dots emits the routine that computes delta. The routine adds products in the same order as the
// routine scores, with which the backward pass computes dP. In a row that sees one key, dP - delta
// is therefore exactly 0.
func (g *generator) dots() {
	rows := "dim"
	if g.bf16 {
		rows = "pairs"
		g.arithmetic("dots", "func(sum *float32, a, b *uint32, pairs int)",
			"sets sum[i] = Σ over c < pairs of dot(a[c][i], b[c][i]), where a and b hold bf16 pairs. a and",
			"b are [pairs][LANES]. pairs > 0.")
	} else {
		g.arithmetic("dots", "func(sum, a, b *float32, dim int)",
			"sets sum[i] = Σ over c < dim of a[c][i]·b[c][i]. a and b are [dim][LANES]. dim > 0.")
	}
	x := dotSums{generator: g, a: param("a"), b: param("b"), x: g.registers[4], y: g.registers[5]}
	sum, n, even, odd := param("sum"), param(rows), g.registers[:2], g.registers[2:4]
	clearSums([][]VecPhysical{even, odd})
	if g.bf16 {
		x.columns("pair", n, even)
	} else {
		x.columns("two", n, even, odd)
		x.columns("one", n, even)
		for v, z := range even {
			VADDPS(odd[v], z, z)
		}
	}
	for v, z := range even {
		VMOVUPS(z, g.part(Mem{Base: sum}, v))
	}
	g.done()
}

type dotSums struct {
	*generator
	a, b GPVirtual // addresses of the current row
	x, y VecPhysical
}

// columns emits a loop over n rows of a and b, and adds the products to sums. For bf16, each row
// holds pairs. An iteration handles one row for each entry of sums. After the loop, n holds the
// number of rows left over.
func (g *dotSums) columns(label string, n GPVirtual, sums ...[]VecPhysical) {
	SUBQ(Imm(uint64(len(sums))), n)
	JL(LabelRef(label + "end"))
	Label(label)
	for i, acc := range sums {
		for v, z := range acc {
			VMOVUPS(g.part(Mem{Base: g.a, Disp: i * g.rowBytes}, v), g.x)
			if b := g.part(Mem{Base: g.b, Disp: i * g.rowBytes}, v); g.bf16 {
				VMOVUPS(b, g.y)
				VDPBF16PS(g.x, g.y, z)
			} else {
				VFMADD231PS(b, g.x, z)
			}
		}
	}
	ADDQ(U32(uint32(len(sums)*g.rowBytes)), g.a)
	ADDQ(U32(uint32(len(sums)*g.rowBytes)), g.b)
	SUBQ(Imm(uint64(len(sums))), n)
	JGE(LabelRef(label))
	Label(label + "end")
	ADDQ(Imm(uint64(len(sums))), n)
}
