package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (g *generator) tileSums() {
	g.routine("addProduct", "func(c *float32, cStep int, a *uint16, aStep int, b *uint32, bStep, rows, columns, pairs int)",
		"adds Σ over i < pairs of dot(a[r][i], b[i][x]) to c[r][x] for r < rows and",
		"x < columns, where a and b hold bf16 pairs. Rows of c are cStep float32 apart, rows of a are",
		"aStep bf16 apart, and rows of b are bStep pairs apart. rows is a positive multiple of 32. columns",
		"and pairs are positive multiples of 16.")
	c, b, columns := param("c"), param("b"), param("columns")
	g.takeTiles()
	Load(Param("cStep"), stepC)
	SHLQ(Imm(2), stepC)
	Load(Param("aStep"), stepA)
	SHLQ(Imm(1), stepA)
	Load(Param("bStep"), stepB)
	SHLQ(Imm(2), stepB)
	Label("columns")
	CMPQ(columns, Imm(tileRows))
	JLE(LabelRef("narrow"))
	tileSum("wide", c, b, 2)
	ADDQ(U32(2*tileBytes), c)
	ADDQ(U32(2*tileBytes), b)
	SUBQ(Imm(2*tileRows), columns)
	JG(LabelRef("columns"))
	JMP(LabelRef("end"))
	Label("narrow")
	tileSum("one", c, b, 1)
	Label("end")
	TILERELEASE()
	g.done()
}

// tileSum emits the loop over the rows of C. wide is the number of tiles of C side by side, 1 or 2.
func tileSum(label string, c, b GPVirtual, wide int) {
	rows := param("rows")
	Load(Param("a"), tileA[0])
	MOVQ(c, tileC[0])
	Label(label + "rows")
	next := GP64()
	MOVQ(tileA[0], next)
	down(tileA[0], stepA, tileA[1])
	down(tileC[0], stepC, tileC[1])
	MOVQ(b, tileB)
	eachTile(wide, func(t, r, offset int) { TILELOADD(offset, tileC[r], stepC, t) })
	tileProducts(label+"pairs", "pairs", wide)
	storeTiles(wide)
	down(next, stepA, tileA[0])
	down(tileA[0], stepA, tileA[0])
	down(tileC[1], stepC, tileC[0])
	SUBQ(Imm(2*tileRows), rows)
	JG(LabelRef(label + "rows"))
}

// gradientPairs emits the routine that computes P = e^(scale S - LSE) and dS = P (dP - delta),
// rounded to bf16.
func (g *generator) gradientPairs() {
	g.arithmetic("gradients", "func(p, ds *uint32, rows *uint16, step int, s, dp *float32, masks *uint32, pairs int, lse, delta *float32, scale float32)",
		"computes weights and gradients of scores, and rounds them to bf16. For query",
		"row i < 2·pairs and key j < LANES:",
		"",
		"  - w[i][j] = e^(scale·s[i][j] - lse[i]), the weight",
		"  - x[i][j] = w[i][j]·(dp[i][j] - delta[i]), the gradient",
		"  - If bit j of masks[i] is clear, w[i][j] and x[i][j] are 0, even if s or dp is NaN there.",
		"  - rows[i][j] = x[i][j]",
		"  - p[i/2][j] = the pair of w[i][j] and w[i+1][j], for even i",
		"  - ds[i/2][j] = the pair of x[i][j] and x[i+1][j], for even i",
		"",
		"The rows of the matrix rows are step elements apart. s and dp are [2*pairs][LANES], p and ds are",
		"[pairs][LANES]. pairs > 0.")
	dst, ds, rows, step := param("p"), param("ds"), param("rows"), bytes16(param("step"))
	s, dp, masks, pairs := param("s"), param("dp"), param("masks"), param("pairs")
	lse, delta := param("lse"), param("delta")
	of := map[string]GPVirtual{"s": s, "dp": dp, "masks": masks, "lse": lse, "delta": delta}
	g.exp2Constants()
	w, x := [2][]VecPhysical{g.registers[0:2], g.registers[2:4]}, [2][]VecPhysical{g.registers[4:6], g.registers[6:8]}
	n, p, y := g.registers[8], g.registers[9], g.registers[10]
	by, base2, permutation := g.registers[11], g.registers[12], g.registers[13]
	floatParam("scale", by)
	g.constant(math.Log2E, base2)
	g.loadPairOrder(permutation)
	Label("pair")
	for i := range 2 {
		for v := range vectors {
			vector := func(name string) Mem { return g.part(Mem{Base: of[name], Disp: i * g.rowBytes}, v) }
			word := func(name string) Mem { return Mem{Base: of[name]} }
			g.rowGradient(i, v, vector, word, w[i][v], x[i][v], by, base2, [3]VecPhysical{n, p, y})
		}
		VCVTNE2PS2BF16(x[i][0], x[i][1], y)
		VMOVDQU32(y, Mem{Base: rows})
		ADDQ(step, rows)
	}
	g.storeRowPairs(w, dst, x, ds, permutation, y)
	g.nextPair(s, dp, dst, ds, masks, lse, delta)
	DECQ(pairs)
	JNZ(LabelRef("pair"))
	g.done()
}

func (g *generator) storeRowPairs(w [2][]VecPhysical, dst GPVirtual, x [2][]VecPhysical, ds GPVirtual, permutation, y VecPhysical) {
	for v := range vectors {
		for _, z := range []struct {
			from [2][]VecPhysical
			to   GPVirtual
		}{{w, dst}, {x, ds}} {
			VCVTNE2PS2BF16(z.from[0][v], z.from[1][v], y)
			VPERMW(y, permutation, y)
			VMOVDQU32(y, g.part(Mem{Base: z.to}, v))
		}
	}
}

// rowGradient emits the code for vector v of row i, 0 or 1, of a pair of rows. The code sets w =
// e^(s·by - lse) and x = w·(dp - delta). Both are 0 where the mask is clear. vector returns the
// address of vector v of row i of the named operand. word returns the address of the named
// operand's word for the first row of the pair.
func (g *generator) rowGradient(i, v int, vector, word func(name string) Mem, w, x, by, base2 VecPhysical, scratch [3]VecPhysical) {
	n, p, y := scratch[0], scratch[1], scratch[2]
	VMOVUPS(vector("s"), w)
	VBROADCASTSS(word("lse").Offset(4*i), y)
	VFMSUB213PS(y, by, w)
	VMULPS(base2, w, w) // after the subtraction, so that large scores lose no digits
	KMOVW(word("masks").Offset(4*i+2*v), K1)
	g.exp2Masked(w, n, p, K1)
	VMOVUPS(vector("dp"), x)
	VBROADCASTSS(word("delta").Offset(4*i), y)
	VSUBPS(y, x, x)
	VMULPS_Z(x, w, K1, x)
}

func (g *generator) shapedGradients() {
	g.arithmetic("shapedGradients", "func(p, ds *uint32, rows *uint16, step int, s, dp *float32, masks *uint32, pairs int, lse, delta *float32, scale float32, kept *uint32, keep float32, softcapGrad *float32)",
		"is gradientsAMXBF16 with dropout, softcap or both. For query row",
		"i < 2·pairs and key j < LANES:",
		"",
		"  - z = keep if bit j of kept[i] is set, else 0. If kept is nil, z = 1.",
		"  - x[i][j] = w[i][j]·(z·dp[i][j] - delta[i])·softcapGrad[i][j]. If softcapGrad is nil, the last",
		"    factor is 1.",
		"  - p gets w[i][j]·z in place of w[i][j].",
		"",
		"At most one of kept and softcapGrad is nil. softcapGrad is [2*pairs][LANES].")
	dst, ds, rows, step := param("p"), param("ds"), param("rows"), bytes16(param("step"))
	of := map[string]GPVirtual{}
	for _, name := range []string{"s", "dp", "masks", "lse", "delta", "kept", "softcapGrad"} {
		of[name] = param(name)
	}
	pairs := param("pairs")
	g.exp2Constants()
	x := gradientShape{generator: g, of: of, keep: g.registers[14], z: g.registers[15], by: g.registers[11], base2: g.registers[12], permutation: g.registers[13]}
	floatParam("scale", x.by)
	floatParam("keep", x.keep)
	g.constant(math.Log2E, x.base2)
	g.loadPairOrder(x.permutation)
	loop := func(kept, softcapGrad bool) {
		label := fmt.Sprintf("pair%t%t", kept, softcapGrad)
		Label(label)
		x.twoRows(dst, ds, rows, step, kept, softcapGrad)
		g.nextPair(of["s"], of["dp"], dst, ds, of["masks"], of["lse"], of["delta"])
		ADDQ(Imm(8), of["kept"])
		ADDQ(U32(uint32(2*g.rowBytes)), of["softcapGrad"])
		DECQ(pairs)
		JNZ(LabelRef(label))
		JMP(LabelRef("end"))
	}
	TESTQ(of["kept"], of["kept"])
	JZ(LabelRef("pairfalsetrue"))
	TESTQ(of["softcapGrad"], of["softcapGrad"])
	JZ(LabelRef("pairtruefalse"))
	loop(true, true)
	loop(true, false)
	loop(false, true)
	Label("end")
	g.done()
}

type gradientShape struct {
	*generator

	of                     map[string]GPVirtual
	keep, z                VecPhysical
	by, base2, permutation VecPhysical
}

func (g *gradientShape) twoRows(dst, ds, rows, step GPVirtual, kept, softcapGrad bool) {
	w, x, y := [2][]VecPhysical{g.registers[0:2], g.registers[2:4]}, [2][]VecPhysical{g.registers[4:6], g.registers[6:8]}, g.registers[10]
	for i := range 2 {
		for v := range vectors {
			g.rowOf(i, v, w[i][v], x[i][v], kept, softcapGrad)
		}
		VCVTNE2PS2BF16(x[i][0], x[i][1], y)
		VMOVDQU32(y, Mem{Base: rows})
		ADDQ(step, rows)
	}
	g.storeRowPairs(w, dst, x, ds, g.permutation, y)
}

// rowOf is rowGradient with dropout and softcap.
func (g *gradientShape) rowOf(i, v int, w, x VecPhysical, kept, softcapGrad bool) {
	vector := func(name string) Mem { return g.part(Mem{Base: g.of[name], Disp: i * g.rowBytes}, v) }
	word := func(name string) Mem { return Mem{Base: g.of[name], Disp: 4 * i} }
	n, p, y := g.registers[8], g.registers[9], g.registers[10]
	VMOVUPS(vector("s"), w)
	VBROADCASTSS(word("lse"), y)
	VFMSUB213PS(y, g.by, w)
	VMULPS(g.base2, w, w) // after the subtraction, so that large scores lose no digits
	KMOVW(word("masks").Offset(2*v), K1)
	g.exp2Masked(w, n, p, K1)
	VMOVUPS(vector("dp"), x)
	if kept {
		KMOVW(word("kept").Offset(2*v), K2)
		VMOVAPS_Z(g.keep, K2, g.z)
		VMULPS(g.z, x, x)
	}
	VBROADCASTSS(word("delta"), y)
	VSUBPS(y, x, x)
	VMULPS_Z(x, w, K1, x)
	if softcapGrad {
		VMULPS_Z(vector("softcapGrad"), x, K1, x)
	}
	if kept {
		VMULPS(g.z, w, w)
	}
}

func (g *generator) nextPair(s, dp, p, ds, masks, lse, delta GPVirtual) {
	ADDQ(U32(uint32(2*g.rowBytes)), s)
	ADDQ(U32(uint32(2*g.rowBytes)), dp)
	ADDQ(U32(uint32(g.rowBytes)), p)
	ADDQ(U32(uint32(g.rowBytes)), ds)
	for _, x := range []GPVirtual{masks, lse, delta} {
		ADDQ(Imm(8), x)
	}
}
