package main

import (
	"math"
	"strconv"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// planeSums emits the routine that computes C += A B for up to 32 columns. The routine adds up the
// products of planes, the small products first, in sums that start from 0. It then adds these sums
// to C.
func (g *generator) planeSums() {
	g.routine("planeSums", "func(c *float32, cStep int, a *uint16, aStep, aPlane int, b *uint32, bStep, bPlane, rows, columns, pairs int, sum *float32)",
		"is addProductAMXBF16 for float32 operands. a and b are each stored as three", "bf16 matrices, called planes. The sum of the three planes is the float32 matrix. Planes of a are",
		"aPlane bytes apart, and planes of b are bPlane bytes apart. a must have room for a multiple of 32",
		"rows, and b must have room for 32 columns. rows > 0. columns is 1 to 32. pairs is a positive", "multiple of 16. sum is scratch, [32][32].")
	c, step, rows := param("c"), param("cStep"), param("rows")
	SHLQ(Imm(2), step)
	g.takeTiles()
	Load(Param("sum"), tileC[0])
	down(tileC[0], stepC, tileC[1])
	Load(Param("a"), tileA[0])
	Load(Param("aStep"), stepA)
	SHLQ(Imm(1), stepA)
	Load(Param("bStep"), stepB)
	SHLQ(Imm(2), stepB)
	masks := [...]Op{K1, K2}
	MOVQ(address("columns"), RCX)
	ones := GP64()
	MOVQ(U32(1), ones)
	SHLQ(CL, ones)
	DECQ(ones)
	KMOVW(ones.As32(), masks[0])
	SHRQ(Imm(16), ones)
	KMOVW(ones.As32(), masks[1])

	add := func(label string, n GPVirtual) { // adds n rows of the previous block to C
		from := GP64()
		MOVQ(tileC[0], from)
		Label(label)
		for v := range vectors {
			x := g.registers[v]
			VMOVUPS(g.part(Mem{Base: from}, v), x)
			VADDPS(g.part(Mem{Base: c}, v), x, masks[v], x)
			VMOVUPS(x, masks[v], g.part(Mem{Base: c}, v))
		}
		ADDQ(step, c)
		ADDQ(U32(uint32(g.rowBytes)), from)
		DECQ(n)
		JNZ(LabelRef(label))
	}
	set := func(label string) {
		setTiles("b", func(a GPVirtual) { g.planeProducts(label, "pairs", "aPlane", "b", "bPlane", a, nothing) })
	}
	set("first")
	JMP(LabelRef("store"))
	Comment("A block is added to C during the tile products of the next block.")
	Label("rows")
	set("next")
	n := GP64()
	MOVQ(U32(2*tileRows), n)
	add("row", n)
	Label("store")
	storeTiles(2)
	SUBQ(Imm(2*tileRows), rows)
	JG(LabelRef("rows"))
	ADDQ(Imm(2*tileRows), rows)
	add("last", rows)
	TILERELEASE()
	g.done()
}

// planeGradients emits the routine that computes P = e^(scale S - LSE) and dS = scale P (dP -
// delta) as three bf16 planes each. The routine also computes S or dP of the next block, because
// tile products leave most of the processor's units free.
func (g *generator) planeGradients() {
	g.arithmetic("planeGradients", "func(p, ds *uint32, plane int, rows *uint16, step, rowsPlane int, s, dp *float32, masks *uint32, pairs int, lse, delta *float32, scale float32, next *float32, k *uint16, kStep, kPlane int, q *uint32, qPlane, words, keys int) bool",
		"is gradientsAMXBF16 for float32 results. p, ds and rows are each stored as",
		"three bf16 matrices, called planes. Planes of p and of ds are plane bytes apart, and planes of",
		"rows are rowsPlane bytes apart. The routine multiplies x by scale, and returns true if all |x|",
		"are below 2^58.",
		"",
		"During this work, the routine also computes the scores of k and q, as planeScoresAMXBF16 does,",
		"and stores them in the matrix next. It computes no maxima. pairs >= 0, keys >= 0.")
	x := g.newGradientPair()
	CMPQ(address("keys"), Imm(0))
	JEQ(LabelRef("rest"))
	g.takeTiles()
	Load(Param("k"), tileA[0])
	Load(Param("kStep"), stepA)
	SHLQ(Imm(1), stepA)
	Label("keys")
	Load(Param("next"), tileC[0])
	down(tileC[0], stepC, tileC[1])
	pairs := 0
	setTiles("q", func(a GPVirtual) {
		g.planeProducts("", "words", "kPlane", "q", "qPlane", a, func() {
			pairs++
			label := "without" + strconv.Itoa(pairs)
			CMPQ(x.at, address("pairs"))
			JEQ(LabelRef(label))
			x.emit()
			Label(label)
		})
	})
	storeTiles(2)
	ADDQ(U32(uint32(2*tileRows*g.rowBytes)), address("next"))
	SUBQ(Imm(2*tileRows), address("keys"))
	JG(LabelRef("keys"))
	TILERELEASE()
	Label("rest")
	CMPQ(x.at, address("pairs"))
	JEQ(LabelRef("end"))
	x.emit()
	JMP(LabelRef("rest"))
	Label("end")
	g.word(2*math.Float32bits(wildFrom), x.scratch[0])
	const below = 1
	VPCMPUD(Imm(below), x.scratch[0], x.most, K1)
	storeWhether(K1)
	g.done()
}

// A gradientPair holds the registers for the gradients of a pair of rows. Base addresses stay in
// memory, because the tiles' addresses take the general registers.
type gradientPair struct {
	*generator

	w, x, piece [2][]VecPhysical // of two rows
	scratch     [3]VecPhysical
	by, base2   VecPhysical
	most        VecPhysical // bits of the largest |x| so far, shifted left by one to drop the sign; NaN is above all numbers
	at, row     GPVirtual   // at: 32 times the number of finished row pairs; row: the address of the current pair in rows
}

func (g *generator) newGradientPair() *gradientPair {
	x := &gradientPair{
		generator: g,
		w:         [2][]VecPhysical{g.registers[0:2], g.registers[2:4]}, x: [2][]VecPhysical{g.registers[4:6], g.registers[6:8]},
		piece: [2][]VecPhysical{g.registers[8:10], g.registers[10:12]}, scratch: [3]VecPhysical(g.registers[12:15]),
		by: g.registers[15], base2: g.registers[16], most: g.registers[18], at: GP64(), row: param("rows"),
	}
	g.exp2Constants()
	g.cutConstant(g.registers[17])
	VPXORD(x.most, x.most, x.most)
	floatParam("scale", x.by)
	g.constant(math.Log2E, x.base2)
	XORQ(x.at, x.at)
	SHLQ(Imm(1), address("step"))
	SHLQ(Imm(5), address("pairs"))
	return x
}

func (g *gradientPair) emit() {
	w, x, y := g.w, g.x, g.scratch[0]
	for i := range 2 {
		for v := range vectors {
			row := func(name string) Mem {
				return g.part(Mem{Base: param(name), Index: g.at, Scale: 8, Disp: i * g.rowBytes}, v)
			}
			word := func(name string) Mem {
				base, words := param(name), GP64()
				MOVQ(g.at, words)
				SHRQ(Imm(2), words)
				return Mem{Base: base, Index: words, Scale: 1}
			}
			g.rowGradient(i, v, row, word, w[i][v], x[i][v], g.by, g.base2, g.scratch)
			VMULPS(g.by, x[i][v], x[i][v])
			VPADDD(x[i][v], x[i][v], y)
			VPMAXUD(y, g.most, g.most)
		}
	}
	for number := range planes {
		for _, z := range []struct {
			from [2][]VecPhysical
			to   string
		}{{w, "p"}, {x, "ds"}} {
			of := z.from // the last plane is the remainder
			if number < planes-1 {
				of = g.piece
				for i := range 2 {
					for v := range vectors {
						g.cut(z.from[i][v], of[i][v])
					}
				}
			}
			if z.to == "ds" {
				row, plane := GP64(), param("rowsPlane")
				MOVQ(g.row, row)
				for i := range 2 {
					VCVTNE2PS2BF16(of[i][0], of[i][1], y)
					VMOVDQU32(y, planeOf(row, plane, number))
					if i == 0 {
						ADDQ(address("step"), row)
					}
				}
			}
			to, plane := param(z.to), param("plane")
			LEAQ(Mem{Base: to, Index: g.at, Scale: 4}, to)
			for v := range vectors {
				g.pairUp(of[0][v], of[1][v], g.part(planeOf(to, plane, number), v))
			}
		}
	}
	ADDQ(address("step"), g.row)
	ADDQ(address("step"), g.row)
	ADDQ(Imm(32), g.at)
}
