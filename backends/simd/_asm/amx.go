package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// The products of AMX-BF16 are of tiles: 16 rows of 16 words each. A word is a
// float32 of C, or a pair of bf16 of A or B, and
//
//	C[r][c] += sum over w of A[r][w]*B[w][c]
//
// so A is 16 rows as they lie, and B is 16 pairs of rows, as pairRows packs them.
// Four tiles of C, two of A and two of B are all eight registers.
//
// A tile is no state that Go knows. Each routine sets the tiles up and gives them
// back, and as no goroutine is stopped inside a routine, nobody else sees them.

// amxRoutines emits the routines on tiles. For all else the kernels take those of
// AVX512 and AVX512BF16.
func amxRoutines() {
	scoresOfTiles()
	valuesOfTiles()
	tileSums()
	weightPairs()
	gradientPairs()
	finite()
	tilePeak()
	aheadScores()
	blockValues()
	addPlanes()
}

const (
	tileRows  = 16
	tileBytes = 64 // of a row
)

// tileShape is the memory that LDTILECFG reads: palette 1, the bytes of a row of
// each of eight tiles, their rows.
var tileShape *Mem

// Where tiles lie. Two of A or C are one below the other, two of B or C side by
// side. The registers are fixed, since the instructions on them are data.
var (
	tileA = [2]GPPhysical{R8, R9}
	tileB = GPPhysical(R11)
	tileC = [2]GPPhysical{RDI, RBX}

	stepA, stepB, stepC = R10, R12, R13 // bytes from row to row
)

// scoresOfTiles emits S = K Qᵀ.
func scoresOfTiles() {
	routine("scores", "func(s *float32, k *uint16, step int, q *uint32, words, keys int, top *float32)",
		"sets s[j][i] = dot(k[j], q[i]) for keys rows of K, step elements apart,",
		"and raises top[i] to the largest of them. Rows of K are of words pairs, and q is [words][LANES]. words is",
		"a multiple of 16. K and s have as many rows as fill groups of 32. keys > 0.")
	tileScores(func(GPVirtual) { tileProducts("words", "words", 2) })
}

// tileScores emits the body of scores. products gets the address of A.
func tileScores(products func(a GPVirtual)) {
	s, keys, top := param("s"), param("keys"), param("top")
	takeTiles()
	max, more, x := registers[4:6], registers[6:8], registers[0]
	for v, z := range max { // of the even rows and of the odd ones
		VMOVUPS(part(Mem{Base: top}, v), z)
		VMOVAPS(z, more[v])
	}
	Load(Param("k"), tileA[0])
	Load(Param("step"), stepA)
	SHLQ(Imm(1), stepA)
	Label("keys")
	MOVQ(s, tileC[0])
	down(tileC[0], stepC, tileC[1])
	setTiles("q", products)
	storeTiles(2)

	row := func(r int, max []VecPhysical) {
		for v, z := range max {
			VMOVUPS(part(Mem{Base: s, Disp: r * rowBytes}, v), x)
			VMAXPS(z, x, z) // a NaN score leaves the maximum as it is
		}
	}
	rows := GP64()
	MOVQ(keys, rows)
	CMPQ(rows, Imm(2*tileRows))
	JLE(LabelRef("some"))
	MOVQ(U32(2*tileRows), rows)
	Label("some")
	SHRQ(Imm(1), rows)
	JZ(LabelRef("last"))
	Label("rows")
	row(0, max)
	row(1, more)
	ADDQ(U32(uint32(2*rowBytes)), s)
	DECQ(rows)
	JNZ(LabelRef("rows"))
	SUBQ(Imm(2*tileRows), keys)
	JG(LabelRef("keys"))
	TESTQ(U32(1), keys)
	JZ(LabelRef("end"))
	Label("last")
	row(0, max)
	Label("end")
	for v, z := range max {
		VMAXPS(more[v], z, z)
		VMOVUPS(z, part(Mem{Base: top}, v))
	}
	TILERELEASE()
	done()
}

// valuesOfTiles emits Oᵀ = alpha Oᵀ + Vᵀ P.
func valuesOfTiles() {
	arithmetic("addValues", "func(o *float32, v *uint32, step int, p *uint32, pairs, vdim int, alpha, sum *float32)",
		"sets o[c][i] = alpha[i]*o[c][i] + the sum over pairs of keys j of v[c][j]*p[j][i], a product of",
		"pairs. Rows of v lie step pairs apart. o is [vdim][LANES], p is [pairs][LANES]. pairs is a positive multiple",
		"of 16, vdim one of 32. sum is scratch, [32][LANES].", nilAlpha)
	tileValues(func(GPVirtual) { tileProducts("pairs", "pairs", 2) })
}

// tileValues emits the body of addValues. products gets the address of A.
func tileValues(products func(a GPVirtual)) {
	o, vdim, alpha := param("o"), param("vdim"), param("alpha")
	takeTiles()
	by, sums := registers[4:6], registers[0:2]
	Load(Param("sum"), tileC[0])
	down(tileC[0], stepC, tileC[1])
	TESTQ(alpha, alpha)
	JZ(LabelRef("begin"))
	for v, z := range by {
		VMOVUPS(part(Mem{Base: alpha}, v), z)
	}
	Label("begin")
	Load(Param("v"), tileA[0])
	Load(Param("step"), stepA)
	SHLQ(Imm(2), stepA)
	Label("dims")
	setTiles("p", products)
	storeTiles(2)
	from, rows := GP64(), GP64()
	MOVQ(tileC[0], from)
	MOVQ(U32(2*tileRows), rows)
	Label("row")
	for v := range by {
		VMOVUPS(part(Mem{Base: from}, v), sums[v])
	}
	TESTQ(alpha, alpha)
	JZ(LabelRef("set"))
	for v, z := range by {
		VFMADD231PS(part(Mem{Base: o}, v), z, sums[v])
	}
	Label("set")
	for v := range by {
		VMOVUPS(sums[v], part(Mem{Base: o}, v))
	}
	ADDQ(U32(uint32(rowBytes)), o)
	ADDQ(U32(uint32(rowBytes)), from)
	DECQ(rows)
	JNZ(LabelRef("row"))
	SUBQ(Imm(2*tileRows), vdim)
	JG(LabelRef("dims"))
	TILERELEASE()
	done()
}

// setTiles emits C = A B for four tiles of C, with B from the parameter of that
// name, and moves A to the rows below. products gets the address of A.
func setTiles(b string, products func(a GPVirtual)) {
	a := GP64()
	MOVQ(tileA[0], a)
	down(tileA[0], stepA, tileA[1])
	Load(Param(b), tileB)
	for t := range 4 {
		TILEZERO(t)
	}
	products(a)
	down(a, stepA, tileA[0])
	down(tileA[0], stepA, tileA[0])
}

// tileSums emits C += A B.
func tileSums() {
	routine("addProduct", "func(c *float32, cStep int, a *uint16, aStep int, b *uint32, bStep, rows, columns, pairs int)",
		"adds to c[r][x] the sum over pairs i of a[r][i]*b[i][x], products of pairs. Rows lie",
		"cStep elements, aStep halves and bStep pairs apart. rows is a positive multiple of 32, columns and pairs of 16.")
	c, b, columns := param("c"), param("b"), param("columns")
	takeTiles()
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
	done()
}

// tileSum emits the loop over the rows of C, so many tiles side by side.
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

// down sets to to the address 16 rows after from.
func down(from, step, to Register) {
	LEAQ(Mem{Base: from, Index: step, Scale: 8}, to)
	LEAQ(Mem{Base: to, Index: step, Scale: 8}, to)
}

// tileProducts adds to the tiles of C, so many side by side, the products of as
// many pairs as the parameter of that name says. It moves the tiles of A and B on.
func tileProducts(label, pairs string, wide int) {
	steps := param(pairs)
	SHRQ(Imm(4), steps)
	Label(label)
	for c := range wide {
		loadTileB(c)
	}
	for r := range tileA {
		loadTileA(r)
		for c := range wide {
			multiplyTiles(r, c)
		}
	}
	for _, a := range tileA {
		ADDQ(Imm(tileBytes), a)
	}
	down(tileB, stepB, tileB)
	DECQ(steps)
	JNZ(LabelRef(label))
}

// The tiles of A lie in registers 6 and 7, those of B in 4 and 5, those of C in the rest.
func loadTileA(r int)        { TILELOADD(0, tileA[r], stepA, 6+r) }
func loadTileB(c int)        { TILELOADD(c*tileBytes, tileB, stepB, 4+c) }
func multiplyTiles(r, c int) { TDPBF16PS(4+c, 6+r, 2*r+c) }

// eachTile calls f for the tiles of C: the number, the row, the offset.
func eachTile(wide int, f func(t, r, offset int)) {
	for r := range tileC {
		for c := range wide {
			f(2*r+c, r, c*tileBytes)
		}
	}
}

func storeTiles(wide int) {
	eachTile(wide, func(t, r, offset int) { TILESTORED(t, offset, tileC[r], stepC) })
}

// weightPairs emits P = 2^(S - max), rounded to pairs.
func weightPairs() {
	arithmetic("weights", "func(p *uint32, s *float32, pairs int, m, top, l, alpha *float32, scale float32)",
		"sets w[j][i] = 2^(scale*(s[j][i] - top[i])), alpha[i] = 2^(scale*(m[i] - top[i])), m[i] =",
		"top[i], l[i] = alpha[i]*l[i] + the sum over j of w[j][i], and p to the pairs of rows of w, rounded",
		"to bf16. A top of -Inf counts as the lowest finite number. s is [2*pairs][LANES], p is [pairs][LANES].",
		"pairs > 0.")
	permutation := registers[9]
	loadPairOrder(permutation)
	weighPairs(param("p"), func(dst GPVirtual, v int, x, y VecPhysical) {
		VCVTNE2PS2BF16(x, y, x)
		VPERMW(x, permutation, x)
		VMOVDQU32(x, part(Mem{Base: dst}, v))
	})
}

// weighPairs emits the body of weights. store gets vector v of two rows of P, and
// where the first vector of their pairs goes. It may change both.
func weighPairs(dst GPVirtual, store func(dst GPVirtual, v int, x, y VecPhysical)) {
	s, pairs := param("s"), param("pairs")
	exp2Constants()
	row, n, p, shift, scale := registers[0:2], registers[2], registers[3], registers[4:6], registers[8]
	sums := [2][]VecPhysical{registers[6:8], registers[13:15]} // of the even keys and of the odd ones
	floatParam("scale", scale)
	l := param("l")
	beginWeights(param("m"), param("top"), l, param("alpha"), row[0], n, p, scale, shift)
	for _, sum := range sums {
		for _, z := range sum {
			VXORPS(z, z, z)
		}
	}
	Label("pair")
	for v := range vectors {
		for i, x := range row {
			VMOVUPS(part(Mem{Base: s, Disp: i * rowBytes}, v), x)
			VSUBPS(shift[v], x, x)
			VMULPS(scale, x, x)
			exp2(x, n, p)
			VADDPS(x, sums[i][v], sums[i][v])
		}
		store(dst, v, row[0], row[1])
	}
	ADDQ(U32(uint32(2*rowBytes)), s)
	ADDQ(U32(uint32(rowBytes)), dst)
	DECQ(pairs)
	JNZ(LabelRef("pair"))
	for v := range vectors {
		VADDPS(sums[1][v], sums[0][v], sums[0][v])
		VADDPS(part(Mem{Base: l}, v), sums[0][v], sums[0][v])
		VMOVUPS(sums[0][v], part(Mem{Base: l}, v))
	}
	done()
}

// gradientPairs emits P = e^(scale S - LSE) and dS = P (dP - delta), rounded.
func gradientPairs() {
	arithmetic("gradients", "func(p, ds *uint32, rows *uint16, step int, s, dp *float32, masks *uint32, pairs int, lse, delta *float32, scale float32)",
		"computes w[i][j] = e^(scale*s[i][j] - lse[i]) and x[i][j] = w[i][j] * (dp[i][j] - delta[i]),",
		"both 0 where bit j of masks[i] is clear, whatever they were. It sets p to the pairs of rows of w, and ds to",
		"those of x, [pairs][LANES], and rows to x, step elements apart, all rounded to bf16. s and dp are",
		"[2*pairs][LANES]. pairs > 0.")
	dst, ds, rows, step := param("p"), param("ds"), param("rows"), bytes16(param("step"))
	s, dp, masks, pairs := param("s"), param("dp"), param("masks"), param("pairs")
	lse, delta := param("lse"), param("delta")
	of := map[string]GPVirtual{"s": s, "dp": dp, "masks": masks, "lse": lse, "delta": delta}
	exp2Constants()
	w, x := [2][]VecPhysical{registers[0:2], registers[2:4]}, [2][]VecPhysical{registers[4:6], registers[6:8]}
	n, p, y := registers[8], registers[9], registers[10]
	by, base2, permutation := registers[11], registers[12], registers[13]
	floatParam("scale", by)
	constant(math.Log2E, base2)
	loadPairOrder(permutation)
	Label("pair")
	for i := range 2 {
		for v := range vectors {
			vector := func(name string) Mem { return part(Mem{Base: of[name], Disp: i * rowBytes}, v) }
			word := func(name string) Mem { return Mem{Base: of[name]} }
			rowGradient(i, v, vector, word, w[i][v], x[i][v], by, base2, [3]VecPhysical{n, p, y})
		}
		VCVTNE2PS2BF16(x[i][0], x[i][1], y)
		VMOVDQU32(y, Mem{Base: rows})
		ADDQ(step, rows)
	}
	for v := range vectors {
		for _, z := range []struct {
			from [2][]VecPhysical
			to   GPVirtual
		}{{w, dst}, {x, ds}} {
			VCVTNE2PS2BF16(z.from[0][v], z.from[1][v], y)
			VPERMW(y, permutation, y)
			VMOVDQU32(y, part(Mem{Base: z.to}, v))
		}
	}
	nextPair(s, dp, dst, ds, masks, lse, delta)
	DECQ(pairs)
	JNZ(LabelRef("pair"))
	done()
}

// rowGradient emits vector v of row i of two: w = e^(s*by - lse) and x = w*(dp -
// delta), 0 where the mask is clear. vector and word return where a vector of a name lies,
// and the first row's word.
func rowGradient(i, v int, vector, word func(name string) Mem, w, x, by, base2 VecPhysical, scratch [3]VecPhysical) {
	n, p, y := scratch[0], scratch[1], scratch[2]
	VMOVUPS(vector("s"), w)
	VBROADCASTSS(word("lse").Offset(4*i), y)
	VFMSUB213PS(y, by, w)
	VMULPS(base2, w, w) // after the difference, so that large scores lose nothing
	KMOVW(word("masks").Offset(4*i+2*v), K1)
	exp2Masked(w, n, p, K1)
	VMOVUPS(vector("dp"), x)
	VBROADCASTSS(word("delta").Offset(4*i), y)
	VSUBPS(y, x, x)
	VMULPS_Z(x, w, K1, x)
}

// nextPair moves on to the next two rows.
func nextPair(s, dp, p, ds, masks, lse, delta GPVirtual) {
	ADDQ(U32(uint32(2*rowBytes)), s)
	ADDQ(U32(uint32(2*rowBytes)), dp)
	ADDQ(U32(uint32(rowBytes)), p)
	ADDQ(U32(uint32(rowBytes)), ds)
	for _, x := range []GPVirtual{masks, lse, delta} {
		ADDQ(Imm(8), x)
	}
}

// finite emits the question whether a product with 0 is 0.
func finite() {
	routine("finite", "func(src *uint16, step, n, rows int) bool",
		"reports whether rows rows of n bf16, step elements apart, hold neither NaN nor infinity. n > 0,",
		"rows > 0.")
	src, step, n, rows := param("src"), bytes16(param("step")), param("n"), param("rows")
	exponent, x := registers[0], registers[1]
	word(0x7f807f80, exponent)
	tail, ones, yes := GP32(), GP32(), GP32()
	MOVQ(n, RCX)
	ANDL(Imm(31), ECX)
	MOVL(U32(0xffffffff), ones)
	MOVL(ones, tail)
	SHLL(CL, tail)
	NOTL(tail)
	KMOVD(tail, K1) // the low n%32 bits
	XORL(yes, yes)
	Label("row")
	at, left := GP64(), GP64()
	MOVQ(src, at)
	MOVQ(n, left)
	KMOVD(ones, K2)
	Label("columns")
	SUBQ(Imm(32), left)
	JGE(LabelRef("some"))
	KMOVD(K1, K2)
	Label("some")
	VMOVDQU16_Z(Mem{Base: at}, K2, x)
	VPANDD(exponent, x, x)
	VPCMPEQW(exponent, x, K3)
	KORTESTD(K3, K3)
	JNZ(LabelRef("no"))
	ADDQ(Imm(64), at)
	TESTQ(left, left)
	JG(LabelRef("columns"))
	ADDQ(step, src)
	DECQ(rows)
	JNZ(LabelRef("row"))
	MOVL(U32(1), yes)
	Label("no")
	Store(yes.As8(), ReturnIndex(0))
	done()
}

// tilePeak emits the loop that measures what the tiles do at most.
func tilePeak() {
	routine("tilePeak", "func(n int, a *uint16)", "does n times four products of tiles: 65536 FLOP each time. a is [32][32].")
	n := param("n")
	takeTiles()
	Load(Param("a"), tileB)
	MOVQ(U32(tileBytes), stepB)
	for t := range 8 {
		if t < 4 {
			TILEZERO(t)
		} else {
			TILELOADD(t%2*tileRows*tileBytes, tileB, stepB, t)
		}
	}
	Label("loop")
	for tile := range 4 {
		multiplyTiles(tile/2, tile%2)
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	TILERELEASE()
	done()
}

// takeTiles sets the tiles up, and the steps of B and C to rows of lanes.
func takeTiles() {
	if tileShape == nil {
		shape := GLOBL("tileShape", RODATA|NOPTR)
		for i, word := range [8]uint64{1, 0, 0x0040004000400040, 0x0040004000400040, 0, 0, 0x1010101010101010, 0} {
			DATA(8*i, U64(word))
		}
		tileShape = &shape
	}
	LEAQ(*tileShape, tileB)
	LDTILECFG(tileB)
	MOVQ(U32(uint32(rowBytes)), stepB)
	MOVQ(stepB, stepC)
}
