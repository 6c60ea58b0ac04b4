package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (g *generator) gradientsOf() {
	g.arithmetic("gradientsOf", "func(s, dp, ds *float32, dsStep int, masks *uint32, rows int, lse, delta *float32, unit, scale float32, kept *uint32, keep float32, softcapGrad, db *float32)",
		"computes weights and gradients with dropout, softcap and bias. For query row",
		"i < rows and key j < LANES:",
		"",
		"  - w = e^(unit·s[i][j] - lse[i]), the weight",
		"  - z = keep if bit j of kept[i] is set, else 0. If kept is nil, z = 1.",
		"  - g = w·(z·dp[i][j] - delta[i])",
		"  - s[i][j] = w·z",
		"  - db[i][j] = g, unless db is nil",
		"  - ds[i][j] = scale·g·softcapGrad[i][j]. If softcapGrad is nil, ds[i][j] = scale·g.",
		"",
		"If bit j of masks[i] is clear, the routine sets s[i][j], db[i][j] and ds[i][j] to 0, even if",
		"inputs are NaN. s, dp, softcapGrad and db are [rows][LANES]. Rows of ds are dsStep elements",
		"apart. rows > 0.")
	x := g.newPairGradients()
	Label("row")
	for v := range vectors {
		x.weights(v)
		x.drop(v)
		x.store(v)
	}
	ADDQ(U32(uint32(g.rowBytes)), x.at)
	ADDQ(x.dsStep, x.ds)
	INCQ(x.row)
	CMPQ(x.row, x.rows)
	JL(LabelRef("row"))
	g.done()
}

type pairGradients struct {
	*generator

	s, dp, ds, dsStep, masks, rows, lse, delta, kept, softcapGrad, db GPVirtual
	at, row                                                           GPVirtual // at: byte offset of the current row; row: number of the current row

	x, n, p, y, unit, base2, high, t VecPhysical
	w, d                             VecPhysical // the registers of n and p, used again after the exponential
}

func (g *generator) newPairGradients() *pairGradients {
	r := g.registers
	g.powerConstants()
	x := &pairGradients{
		generator: g,
		s:         param("s"), dp: param("dp"), ds: param("ds"), dsStep: bytes(param("dsStep")), masks: param("masks"),
		rows: param("rows"), lse: param("lse"), delta: param("delta"), kept: param("kept"), softcapGrad: param("softcapGrad"), db: param("db"),
		at: GP64(), row: GP64(),
		x: r[0], n: r[1], p: r[2], y: r[3], unit: r[4], base2: r[5], high: r[6], t: r[7], w: r[1], d: r[2],
	}
	floatParam("unit", x.unit)
	g.constant(math.Log2E, x.base2)
	g.constant(128*math.Ln2, x.high)
	XORQ(x.at, x.at)
	XORQ(x.row, x.row)
	return x
}

// vector returns the address of vector v of an operand's current row.
func (g *pairGradients) vector(base GPVirtual, v int) Mem {
	return g.part(Mem{Base: base, Index: g.at, Scale: 1}, v)
}

// word returns the address of the current row's word of an operand with one word per row.
func (g *pairGradients) word(base GPVirtual) Mem { return Mem{Base: base, Index: g.row, Scale: 4} }

func (g *pairGradients) weights(v int) {
	VMOVUPS(g.vector(g.s, v), g.x)
	VBROADCASTSS(g.word(g.lse), g.y)
	VFMSUB213PS(g.y, g.unit, g.x)
	if !g.avx512 {
		VMINPS(g.x, g.high, g.x) // a wrong LSE may make x too large for power. This operand order keeps NaN
	}
	g.power(g.x, g.base2, g.n, g.p) // power multiplies after the subtraction, so that large scores lose no digits
}

func (g *pairGradients) drop(v int) {
	VMOVUPS(g.vector(g.dp, v), g.d)
	VMOVAPS(g.x, g.w)
	whole := fmt.Sprintf("whole%d", v)
	TESTQ(g.kept, g.kept)
	JZ(LabelRef(whole))
	VBROADCASTSS(address("keep"), g.t)
	if g.avx512 {
		KMOVW(g.word(g.kept).Offset(2*v), K2)
		VMOVAPS_Z(g.t, K2, g.y)
	} else {
		g.laneMask(g.word(g.kept), v, g.y)
		VANDPS(g.t, g.y, g.y)
	}
	VMULPS(g.y, g.d, g.d)
	VMULPS(g.y, g.w, g.w)
	Label(whole)
}

func (g *pairGradients) store(v int) {
	VBROADCASTSS(g.word(g.delta), g.t)
	VSUBPS(g.t, g.d, g.d)
	VMULPS(g.x, g.d, g.d)
	hide := func(z VecPhysical) { VANDPS(g.y, z, z) }
	if g.avx512 {
		KMOVW(g.word(g.masks).Offset(2*v), K1)
		hide = func(z VecPhysical) { VMOVAPS_Z(z, K1, z) }
	} else {
		g.laneMask(g.word(g.masks), v, g.y)
	}
	hide(g.w)
	hide(g.d)
	VMOVUPS(g.w, g.vector(g.s, v))
	unbiased, uncapped := fmt.Sprintf("unbiased%d", v), fmt.Sprintf("uncapped%d", v)
	TESTQ(g.db, g.db)
	JZ(LabelRef(unbiased))
	VMOVUPS(g.d, g.vector(g.db, v))
	Label(unbiased)
	VBROADCASTSS(address("scale"), g.t)
	VMULPS(g.t, g.d, g.d)
	TESTQ(g.softcapGrad, g.softcapGrad)
	JZ(LabelRef(uncapped))
	VMULPS(g.vector(g.softcapGrad, v), g.d, g.d)
	hide(g.d)
	Label(uncapped)
	VMOVUPS(g.d, g.part(Mem{Base: g.ds}, v))
}
