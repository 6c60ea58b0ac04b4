package main

import (
	"math"
	"strconv"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// planeGradients emits P = e^(scale S - LSE) and dS = scale P (dP - delta), in planes, and
// meanwhile the next S or dP: products of tiles leave most of the processor free.
func planeGradients() {
	arithmetic("planeGradients", "func(p, ds *uint32, plane int, rows *uint16, step, rowsPlane int, s, dp *float32, masks *uint32, pairs int, lse, delta *float32, scale float32, next *float32, k *uint16, kStep, kPlane int, q *uint32, qPlane, words, keys int) bool",
		"is gradients for planes of p and ds, and of rows, that lie plane and rowsPlane bytes apart. It",
		"multiplies x by scale, and reports whether all of x are below 2^58. Meanwhile it sets next as planeScores sets s,",
		"from planes of k and q. pairs >= 0, keys >= 0.")
	g := newGradientPair()
	CMPQ(address("keys"), Imm(0))
	JEQ(LabelRef("rest"))
	takeTiles()
	Load(Param("k"), tileA[0])
	Load(Param("kStep"), stepA)
	SHLQ(Imm(1), stepA)
	Label("keys")
	Load(Param("next"), tileC[0])
	down(tileC[0], stepC, tileC[1])
	pairs := 0
	setTiles("q", func(a GPVirtual) {
		planeProducts("", "words", "kPlane", "q", "qPlane", a, func() {
			pairs++
			label := "without" + strconv.Itoa(pairs)
			CMPQ(g.at, address("pairs"))
			JEQ(LabelRef(label))
			g.emit()
			Label(label)
		})
	})
	storeTiles(2)
	ADDQ(U32(uint32(2*tileRows*rowBytes)), address("next"))
	SUBQ(Imm(2*tileRows), address("keys"))
	JG(LabelRef("keys"))
	TILERELEASE()
	Label("rest")
	CMPQ(g.at, address("pairs"))
	JEQ(LabelRef("end"))
	g.emit()
	JMP(LabelRef("rest"))
	Label("end")
	word(2*math.Float32bits(wildFrom), g.scratch[0])
	const below = 1
	VPCMPUD(Imm(below), g.scratch[0], g.most, K1)
	storeWhether(K1)
	done()
}

// A gradientPair is the registers of the gradients of a pair of rows. Where the operands
// begin stays in memory, as the tiles take the registers for it.
type gradientPair struct {
	w, x, piece [2][]VecPhysical // of two rows
	scratch     [3]VecPhysical
	by, base2   VecPhysical
	most        VecPhysical // magnitudes of x without the sign, as integers: NaN is above all
	at, row     GPVirtual   // 32 for each pair that is done; where its rows are
}

func newGradientPair() *gradientPair {
	g := &gradientPair{
		w: [2][]VecPhysical{registers[0:2], registers[2:4]}, x: [2][]VecPhysical{registers[4:6], registers[6:8]},
		piece: [2][]VecPhysical{registers[8:10], registers[10:12]}, scratch: [3]VecPhysical(registers[12:15]),
		by: registers[15], base2: registers[16], most: registers[18], at: GP64(), row: param("rows"),
	}
	exp2Constants()
	cutConstant(registers[17])
	VPXORD(g.most, g.most, g.most)
	floatParam("scale", g.by)
	constant(math.Log2E, g.base2)
	XORQ(g.at, g.at)
	SHLQ(Imm(1), address("step"))
	SHLQ(Imm(5), address("pairs"))
	return g
}

// emit emits one pair, and moves on to the next.
func (g *gradientPair) emit() {
	w, x, y := g.w, g.x, g.scratch[0]
	for i := range 2 {
		for v := range vectors {
			row := func(name string) Mem {
				return part(Mem{Base: param(name), Index: g.at, Scale: 8, Disp: i * rowBytes}, v)
			}
			word := func(name string) Mem {
				base, words := param(name), GP64()
				MOVQ(g.at, words)
				SHRQ(Imm(2), words)
				return Mem{Base: base, Index: words, Scale: 1}
			}
			rowGradient(i, v, row, word, w[i][v], x[i][v], g.by, g.base2, g.scratch)
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
			of := z.from // the last plane is what is left
			if number < planes-1 {
				of = g.piece
				for i := range 2 {
					for v := range vectors {
						cut(z.from[i][v], of[i][v])
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
				pairUp(of[0][v], of[1][v], part(planeOf(to, plane, number), v))
			}
		}
	}
	ADDQ(address("step"), g.row)
	ADDQ(address("step"), g.row)
	ADDQ(Imm(32), g.at)
}

// pairUp stores the pairs of two vectors that bf16 can hold.
func pairUp(x, y VecPhysical, to Mem) {
	const orAnd = 0xf8 // x | y & upperHalf
	VPSRLD(Imm(16), x, x)
	VPTERNLOGD(Imm(orAnd), upperHalf, y, x)
	VMOVDQU32(x, to)
}
