package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// An activation is a function act. value replaces x by act(x), and slope replaces x by dy·act'(x).
// A nil value stands for the identity. value and slope may use registers 1 to 5 and the registers
// of exp2Constants. If given is not "", the routine has the numbers of act as a parameter.
type activation struct {
	name  string
	exp   bool
	given string
	value func(x VecPhysical)
	slope func(x, dy VecPhysical)
}

func (a activation) parameter() string {
	if a.given == "" {
		return ""
	}
	return ", numbers *float32"
}

// elements addresses a vector of adjacent elements. at is the byte offset of the vector. The vector
// is whole, or a mask selects the elements left at the end of a row.
type elements struct {
	g      *generator
	at     GPVirtual   // byte offset
	masked bool        // K1 (in AVX2, mask) selects the elements
	mask   VecPhysical // used in AVX2
	whole  GPVirtual   // nil, or 0 at the end of a row only: then AVX2 stores whole vectors without the mask, which is faster
	stores *int        // number of labels of such stores
}

func (e elements) mem(base GPVirtual) Mem { return Mem{Base: base, Index: e.at, Scale: 1} }

func (e elements) load(base GPVirtual, z VecPhysical) {
	switch {
	case !e.masked:
		VMOVUPS(e.mem(base), z)
	case e.g.avx512:
		VMOVUPS_Z(e.mem(base), K1, z)
	default:
		VMASKMOVPS(e.mem(base), e.mask, z)
	}
}

func (e elements) store(z VecPhysical, base GPVirtual) {
	switch {
	case !e.masked:
		VMOVUPS(z, e.mem(base))
	case e.g.avx512:
		VMOVUPS(z, K1, e.mem(base))
	case e.whole != nil:
		*e.stores++
		part, stored := fmt.Sprintf("part%d", *e.stores), fmt.Sprintf("stored%d", *e.stores)
		TESTQ(e.whole, e.whole)
		JZ(LabelRef(part))
		VMOVUPS(z, e.mem(base))
		JMP(LabelRef(stored))
		Label(part)
		VMASKMOVPS(z, e.mask, e.mem(base))
		Label(stored)
	default:
		VMASKMOVPS(z, e.mask, e.mem(base))
	}
}

// tailMask sets K1 (in AVX2, mask) to select the elements left over after n elements are split into
// whole vectors. It destroys n.
func (g *generator) tailMask(n GPVirtual, mask VecPhysical) { g.setMask(g.tail(n), mask) }

// tail returns a register from which setMask sets the mask of the elements left over after n elements
// are split into whole vectors. It destroys n.
func (g *generator) tail(n GPVirtual) GPVirtual {
	lanes := g.vectorBytes / 4
	ANDQ(Imm(uint64(lanes-1)), n)
	t := GP64()
	if g.avx512 {
		MOVQ(n, RCX)
		MOVL(U32(1), t.As32())
		SHLL(CL, t.As32())
		DECL(t.As32())
		return t
	}
	table := g.table("firstElements", func() {
		for i := range lanes {
			DATA(4*i, I32(-1))
		}
		for i := range lanes {
			DATA(4*(lanes+i), U32(0))
		}
	})
	LEAQ(table.Offset(4*lanes), t)
	SHLQ(Imm(2), n)
	SUBQ(n, t)
	return t
}

func (g *generator) setMask(tail GPVirtual, mask VecPhysical) {
	if g.avx512 {
		KMOVW(tail.As32(), K1)
	} else {
		VMOVUPS(Mem{Base: tail}, mask)
	}
}

// eachVector emits a loop over n elements: whole vectors, then the elements left over, with the mask
// of tail. body emits the code for one vector.
func (g *generator) eachVector(n, tail GPVirtual, mask VecPhysical, body func(e elements)) {
	e := elements{g: g, at: GP64(), masked: true, mask: mask, whole: GP64(), stores: new(int)}
	XORQ(e.at, e.at)
	if g.avx512 {
		KXNORW(K1, K1, K1)
	} else {
		VPCMPEQD(mask, mask, mask)
	}
	MOVQ(n, e.whole)
	SHRQ(Imm(uint64(4+g.vectorBytes/64)-1), e.whole)
	JZ(LabelRef("tail"))
	Label("vector")
	body(e)
	TESTQ(e.whole, e.whole)
	JZ(LabelRef("end"))
	ADDQ(Imm(uint64(g.vectorBytes)), e.at)
	DECQ(e.whole)
	JNZ(LabelRef("vector"))
	Label("tail")
	TESTQ(U32(uint32(g.vectorBytes/4-1)), n)
	JZ(LabelRef("end"))
	g.setMask(tail, mask)
	JMP(LabelRef("vector"))
	Label("end")
}

func (g *generator) finishRows(a activation) {
	g.arithmetic("finish"+a.name, "func(c *float32, cStep int, sums *float32, sumStep int, bias, before *float32, beforeStep int, residual *float32, residualStep int, rows, cols, add int"+a.parameter()+")",
		"sets c to act(sums + bias) + residual, or adds these values to c. act is the",
		"activation in the routine's name. With None, act(x) is x. For r < rows and i < cols:",
		"",
		"  - x = sums[r][i] + bias[i]",
		"  - before[r][i] = x",
		"  - y = act(x) + residual[r][i]",
		"  - c[r][i] = y, or the old c[r][i] + y if add != 0",
		"",
		"bias, before and residual may be nil. For a nil array, the routine omits the addition or the",
		"store. cStep, sumStep, beforeStep and residualStep are row strides in elements. rows > 0."+a.given)
	c, sums, bias, before, residual, rows, cols := param("c"), param("sums"), param("bias"), param("before"), param("residual"), param("rows"), param("cols")
	x, y, mask := g.registers[0], g.registers[1], g.registers[7]
	if a.exp {
		g.exp2Constants()
	}
	if a.given != "" {
		g.given = param("numbers")
	}
	left := GP64()
	MOVQ(cols, left)
	tail := g.tail(left)
	given := func(p GPVirtual, label string, then func()) {
		TESTQ(p, p)
		JZ(LabelRef(label))
		then()
		Label(label)
	}
	Label("row")
	g.eachVector(cols, tail, mask, func(e elements) {
		e.load(sums, x)
		given(bias, "noBias", func() { e.load(bias, y); VADDPS(y, x, x) })
		given(before, "noBefore", func() { e.store(x, before) })
		if a.value != nil {
			a.value(x)
		}
		given(residual, "noResidual", func() { e.load(residual, y); VADDPS(y, x, x) })
		CMPQ(address("add"), Imm(0))
		JE(LabelRef("set"))
		e.load(c, y)
		VADDPS(y, x, x)
		Label("set")
		e.store(x, c)
	})
	next := func(p GPVirtual, step string) {
		s := param(step)
		LEAQ(Mem{Base: p, Index: s, Scale: 4}, p)
	}
	next(c, "cStep")
	next(sums, "sumStep")
	given(before, "beforeDone", func() { next(before, "beforeStep") })
	given(residual, "residualDone", func() { next(residual, "residualStep") })
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}

func (g *generator) slopes(a activation) {
	g.arithmetic("slope"+a.name, "func(dx, x, dy *float32, n int"+a.parameter()+")",
		"sets dx[i] = dy[i]·act'(x[i]) for i < n. act' is the derivative of the activation in the routine's name."+a.given)
	dx, from, dy, n := param("dx"), param("x"), param("dy"), param("n")
	x, y, mask := g.registers[0], g.registers[6], g.registers[7]
	if a.exp {
		g.exp2Constants()
	}
	if a.given != "" {
		g.given = param("numbers")
	}
	left := GP64()
	MOVQ(n, left)
	g.eachVector(n, g.tail(left), mask, func(e elements) {
		e.load(from, x)
		e.load(dy, y)
		a.slope(x, y)
		e.store(x, dx)
	})
	g.done()
}

// relu emits max(x, 0). NaN stays NaN.
func (g *generator) relu(x VecPhysical) {
	zero := g.registers[1]
	VXORPS(zero, zero, zero)
	VMAXPS(x, zero, x)
}

// numbers places constants in memory, each repeated in all lanes of a vector. It returns a function
// that returns the address of constant i.
func (g *generator) numbers(table string, values ...float64) func(i int) Mem {
	words := make([]uint32, len(values))
	for i, v := range values {
		words[i] = math.Float32bits(float32(v))
	}
	first := g.everyLane(table, words)
	return func(i int) Mem { return first.Offset(i * g.vectorBytes) }
}

// reluSlope sets x to 0 where x <= 0, even if dy is NaN or infinite. Elsewhere, including at a NaN
// x, it sets x to dy.
func (g *generator) reluSlope(x, dy VecPhysical) {
	const notLessOrEqual = 6
	zero := g.registers[1]
	VXORPS(zero, zero, zero)
	if g.avx512 {
		VCMPPS(Imm(notLessOrEqual), zero, x, K2)
		VMOVAPS_Z(dy, K2, x)
	} else {
		VCMPPS(Imm(notLessOrEqual), zero, x, x)
		VANDPS(dy, x, x)
	}
}

// GELU is x Φ(x), where Φ is the standard normal distribution function. For z >= 0, Φ(-z) = 2^(-z²
// log2(e)/2) t P(t) with t = 1/(1 + 0.27 z). P is a minimax fit of degree 8. Its relative error is
// 2e-8 up to normalEnd, where the power of 2 reaches the smallest float32 numbers.
const (
	normalSlope = 0.27
	normalEnd   = 13.2
)

var normalFit = []float64{0.10771922022104263, 0.107565738260746, 0.10165729373693466, 0.07261548936367035, 0.10656528919935226,
	-0.06747189164161682, 0.16833119094371796, -0.1258091926574707, 0.02882687933743}

// normalTail sets z = min(|x|, normalEnd), e = 2^(-z² log2(e)/2) and q = Φ(-z). NaN stays NaN.
func (g *generator) normalTail(x, z, q, e, n, p VecPhysical) {
	c := g.numbers("normal", append([]float64{normalEnd, 1, normalSlope, -math.Log2E / 2}, normalFit...)...)
	g.bits("magnitude", 1<<31-1, x, z)
	VMOVUPS(c(0), q)
	VMINPS(z, q, z)
	VMOVUPS(c(1), q)
	VMOVUPS(c(1), n)
	VFMADD231PS(c(2), z, q)
	VDIVPS(q, n, q)
	VMOVUPS(c(4+8), p)
	for i := 7; i >= 0; i-- {
		VFMADD213PS(c(4+i), q, p)
	}
	VMULPS(p, q, q)
	VMULPS(z, z, e)
	VMULPS(c(3), e, e)
	g.exp2(e, n, p)
	VMULPS(e, q, q)
}

func (g *generator) bits(table string, mask uint32, x, z VecPhysical) {
	VANDPS(g.everyLane(table, []uint32{mask}), x, z)
}

// gelu emits max(x, 0) - z Φ(-z). normalTail bounds z, so no infinity is multiplied by 0.
func (g *generator) gelu(x VecPhysical) {
	z, q, e, n, p := g.registers[1], g.registers[2], g.registers[3], g.registers[4], g.registers[5]
	g.normalTail(x, z, q, e, n, p)
	VXORPS(n, n, n)
	VMAXPS(x, n, x)
	VFNMADD231PS(q, z, x)
}

// geluSlope emits (Φ(x) + x φ(x)) dy, where φ is the standard normal density.
func (g *generator) geluSlope(x, dy VecPhysical) {
	z, q, e, n, p := g.registers[1], g.registers[2], g.registers[3], g.registers[4], g.registers[5]
	g.normalTail(x, z, q, e, n, p)
	c := g.numbers("density", 1, 1/math.Sqrt(2*math.Pi))
	VMOVUPS(c(0), n)
	VSUBPS(q, n, n)
	VMULPS(c(1), e, e)
	g.bits("sign", 1<<31, x, p)
	VORPS(p, z, z)
	if g.avx512 {
		VPMOVD2M(x, K2)
		VBLENDMPS(q, n, K2, x)
	} else {
		VBLENDVPS(x, q, n, x)
	}
	VFMADD231PS(e, z, x)
	VMULPS(dy, x, x)
}

// A logistic activation is x/(1 + 2^y) with y = -2 log2(e) linear (x + cubic x³): GELUTanh and SiLU. Its
// numbers are a parameter, so that both share the routines. x is at least lowest, to avoid infinity
// times 0.
const (
	logisticBy    = iota // -2 log2(e) linear
	logisticCubic        // logisticBy·cubic
	logisticOne
	logisticMost      // largest y of a value
	logisticSlopeMost // largest y of a slope
	logisticLowest    // least x
	logisticHighest   // greatest x of a slope
	logisticLinear    // 2 linear
	logisticCubicBy   // 6 linear cubic
)

const logisticNumbers = " numbers is [9][16]: each number of the activation in all lanes of a vector."

func (g *generator) number(i int) Mem { return Mem{Base: g.given, Disp: 64 * i} }

// logisticParts sets e = 2^min(y, most), s = 1/(1 + e) and square = x².
func (g *generator) logisticParts(most int, x, e, s, square, n, p VecPhysical) {
	VMULPS(x, x, square)
	VMOVUPS(g.number(logisticBy), e)
	VFMADD231PS(g.number(logisticCubic), square, e)
	VMULPS(x, e, e)
	VMOVUPS(g.number(most), n)
	VMINPS(e, n, e)
	g.exp2(e, n, p)
	VADDPS(g.number(logisticOne), e, s)
	VMOVUPS(g.number(logisticOne), n)
	VDIVPS(s, n, s)
}

func (g *generator) logistic(x VecPhysical) {
	s, square, n, p, e := g.registers[1], g.registers[2], g.registers[3], g.registers[4], g.registers[5]
	VMOVUPS(g.number(logisticLowest), n)
	VMAXPS(x, n, x)
	g.logisticParts(logisticMost, x, e, s, square, n, p)
	VMULPS(s, x, x)
}

// logisticSlope emits (s + x e s² u) dy, where u = 2 linear (1 + 3 cubic x²).
func (g *generator) logisticSlope(x, dy VecPhysical) {
	s, square, n, p, e := g.registers[1], g.registers[2], g.registers[3], g.registers[4], g.registers[5]
	VMOVUPS(g.number(logisticLowest), n)
	VMAXPS(x, n, x)
	VMOVUPS(g.number(logisticHighest), n)
	VMINPS(x, n, x)
	g.logisticParts(logisticSlopeMost, x, e, s, square, n, p)
	VMOVUPS(g.number(logisticLinear), n)
	VFMADD231PS(g.number(logisticCubicBy), square, n)
	VMULPS(x, n, n)
	VMULPS(s, n, n)
	VMULPS(s, e, e)
	VMOVAPS(s, x)
	VFMADD231PS(e, n, x)
	VMULPS(dy, x, x)
}
