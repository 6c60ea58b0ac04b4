package main

import (
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
	declareTileShape()
	tileScores()
	tileValues()
	weightPairs()
	finite()
	tilePeak()
}

const (
	tileRows  = 16
	tileBytes = 64 // of a row
)

// tileShape is the memory that LDTILECFG reads: palette 1, the bytes of a row of
// each of eight tiles, their rows.
var tileShape *Mem

func declareTileShape() {
	shape := GLOBL("tileShape", RODATA|NOPTR)
	for i, word := range [8]uint64{1, 0, 0x0040004000400040, 0x0040004000400040, 0, 0, 0x1010101010101010, 0} {
		DATA(8*i, U64(word))
	}
	tileShape = &shape
}

// Where tiles lie. Two of A or C are one below the other, two of B or C side by
// side. The registers are fixed, since the instructions on them are data.
var (
	tileA = [2]GPPhysical{R8, R9}
	tileB = R11
	tileC = RDI
	stepA = R10 // bytes from row to row
	stepB = R12 // also of C
)

// tileScores emits S = K Qᵀ.
func tileScores() {
	routine("scores", "func(s *float32, k *uint16, step int, q *uint32, words, keys int, top *float32)",
		"sets s[j][i] = dot(k[j], q[i]) for keys rows of K, step elements apart,",
		"and raises top[i] to the largest of them. Rows of K are of words pairs, and q is [words][LANES]. words is",
		"a multiple of 16. K and s have as many rows as fill groups of 32. keys > 0.")
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
	next := GP64()
	LEAQ(Mem{Base: tileA[0], Index: stepA, Scale: 8}, next) // 8 rows on
	LEAQ(Mem{Base: next, Index: stepA, Scale: 8}, tileA[1])
	LEAQ(Mem{Base: tileA[1], Index: stepA, Scale: 8}, next)
	LEAQ(Mem{Base: next, Index: stepA, Scale: 8}, next)
	Load(Param("q"), tileB)
	for r := range 4 {
		TILEZERO(r)
	}
	steps := param("words")
	SHRQ(Imm(4), steps)
	tileProducts("words", steps)
	MOVQ(s, tileC)
	storeTiles()
	MOVQ(next, tileA[0])

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

// tileValues emits Oᵀ = alpha Oᵀ + Vᵀ P.
func tileValues() {
	arithmetic("addValues", "func(o *float32, v *uint32, step int, p *uint32, pairs, vdim int, alpha, sum *float32)",
		"sets o[c][i] = alpha[i]*o[c][i] + the sum over pairs of keys j of v[c][j]*p[j][i], a product of",
		"pairs. Rows of v lie step pairs apart. o is [vdim][LANES], p is [pairs][LANES]. pairs is a positive multiple",
		"of 16, vdim one of 32. sum is scratch, [32][LANES].")
	o, vdim, alpha := param("o"), param("vdim"), param("alpha")
	takeTiles()
	by, x := registers[4:6], registers[0]
	Load(Param("sum"), tileC)
	for v, z := range by {
		VMOVUPS(part(Mem{Base: alpha}, v), z)
	}
	Load(Param("v"), tileA[0])
	Load(Param("step"), stepA)
	SHLQ(Imm(2), stepA)
	Label("dims")
	next := GP64()
	LEAQ(Mem{Base: tileA[0], Index: stepA, Scale: 8}, next)
	LEAQ(Mem{Base: next, Index: stepA, Scale: 8}, tileA[1])
	LEAQ(Mem{Base: tileA[1], Index: stepA, Scale: 8}, next)
	LEAQ(Mem{Base: next, Index: stepA, Scale: 8}, next)
	Load(Param("p"), tileB)
	for r := range 4 {
		TILEZERO(r)
	}
	steps := param("pairs")
	SHRQ(Imm(4), steps)
	tileProducts("pairs", steps)
	storeTiles()
	MOVQ(next, tileA[0])
	from, rows := GP64(), GP64()
	MOVQ(tileC, from)
	MOVQ(U32(2*tileRows), rows)
	Label("row")
	for v, z := range by {
		VMOVUPS(part(Mem{Base: o}, v), x)
		VFMADD213PS(part(Mem{Base: from}, v), z, x)
		VMOVUPS(x, part(Mem{Base: o}, v))
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

// tileProducts adds to the four tiles of C the products of so many steps: two
// tiles of A by two of B. It moves the tiles on.
func tileProducts(label string, steps GPVirtual) {
	Label(label)
	for c := range 2 {
		TILELOADD(c*tileBytes, tileB, stepB, 4+c)
	}
	for r := range 2 {
		TILELOADD(0, tileA[r], stepA, 6+r)
		for c := range 2 {
			TDPBF16PS(4+c, 6+r, 2*r+c)
		}
	}
	for _, a := range tileA {
		ADDQ(Imm(tileBytes), a)
	}
	ADDQ(U32(uint32(tileRows*rowBytes)), tileB)
	DECQ(steps)
	JNZ(LabelRef(label))
}

// storeTiles stores the four tiles of C.
func storeTiles() {
	for tile := range 4 {
		TILESTORED(tile, tile/2*tileRows*rowBytes+tile%2*tileBytes, tileC, stepB)
	}
}

// weightPairs emits P = 2^(S - max), rounded to pairs.
func weightPairs() {
	order := lanesOfPairs()
	arithmetic("weights", "func(p *uint32, s *float32, pairs int, m, top, l, alpha *float32, scale float32)",
		"sets w[j][i] = 2^(scale*(s[j][i] - top[i])), alpha[i] = 2^(scale*(m[i] - top[i])), m[i] =",
		"top[i], l[i] = alpha[i]*l[i] + the sum over j of w[j][i], and p to the pairs of rows of w, rounded",
		"to bf16. A top of -Inf counts as the lowest finite number. s is [2*pairs][LANES], p is [pairs][LANES].",
		"pairs > 0.")
	dst, s, pairs := param("p"), param("s"), param("pairs")
	exp2Constants()
	n, p, shift, sum := registers[2], registers[3], registers[4:6], registers[6:8]
	scale, permutation := registers[8], registers[9]
	VMOVDQU32(order, permutation)
	floatParam("scale", scale)
	beginWeights(param("m"), param("top"), param("l"), param("alpha"), registers[0], n, p, scale, shift, sum)
	Label("pair")
	for v := range vectors {
		row := registers[0:2]
		for i, x := range row {
			VMOVUPS(part(Mem{Base: s, Disp: i * rowBytes}, v), x)
			VSUBPS(shift[v], x, x)
			VMULPS(scale, x, x)
			exp2(x, n, p)
			VADDPS(x, sum[v], sum[v])
		}
		VCVTNE2PS2BF16(row[0], row[1], row[0])
		VPERMW(row[0], permutation, row[0])
		VMOVDQU32(row[0], part(Mem{Base: dst}, v))
	}
	ADDQ(U32(uint32(2*rowBytes)), s)
	ADDQ(U32(uint32(rowBytes)), dst)
	DECQ(pairs)
	JNZ(LabelRef("pair"))
	l := param("l")
	for v := range vectors {
		VMOVUPS(sum[v], part(Mem{Base: l}, v))
	}
	done()
}

// finite emits the question whether a product with 0 is 0.
func finite() {
	routine("finite", "func(src *uint16, step, n, rows int) bool",
		"reports whether rows rows of n bf16, step elements apart, hold neither NaN nor infinity. n > 0,",
		"rows > 0.")
	src, step, n, rows := param("src"), bytes16(param("step")), param("n"), param("rows")
	exponent, x := registers[0], registers[1]
	word(0x7f807f80, exponent)
	tail, ones, bad := GP32(), GP32(), GP32()
	MOVQ(n, RCX)
	ANDL(Imm(31), ECX)
	MOVL(U32(0xffffffff), ones)
	MOVL(ones, tail)
	SHLL(CL, tail)
	NOTL(tail)
	KMOVD(tail, K1) // the low n%32 bits
	XORL(bad, bad)
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
	MOVL(U32(1), bad)
	Label("no")
	Store(bad.As8(), ReturnIndex(0))
	done()
}

// tilePeak emits the loop that measures what the tiles do at most.
func tilePeak() {
	routine("tilePeak", "func(n int)", "does n times four products of tiles: 65536 FLOP each time.")
	n := param("n")
	takeTiles()
	for tile := range 8 {
		TILEZERO(tile)
	}
	Label("loop")
	for tile := range 4 {
		TDPBF16PS(4+tile%2, 6+tile/2, tile)
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	TILERELEASE()
	done()
}

// takeTiles sets the tiles up, and stepB.
func takeTiles() {
	LEAQ(*tileShape, tileB)
	LDTILECFG(tileB)
	MOVQ(U32(uint32(rowBytes)), stepB)
}
