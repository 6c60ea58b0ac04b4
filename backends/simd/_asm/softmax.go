package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (g *generator) constant(x float32, z VecPhysical) { g.word(math.Float32bits(x), z) }

// word loads x into every lane of z.
func (g *generator) word(x uint32, z VecPhysical) {
	r := GP32()
	MOVL(U32(x), r)
	if g.avx512 {
		VPBROADCASTD(r, z)
		return
	}
	VMOVD(r, z.AsX())
	VPBROADCASTD(z.AsX(), z)
}

// An exponential holds the constants of exp2, in registers or in memory. c holds the coefficients
// of the polynomial. low is the lowest argument of exp2, and rounding is the rounding constant.
// AVX-512 uses neither low nor rounding.
type exponential struct {
	c             [6]Op
	low, rounding Op
}

// exp2Numbers returns the constants in the order of an exponential's fields. Both polynomials are
// minimax fits of degree 5 to 2^f with c0 = 1 and relative error 1e-7. The fit for AVX-512 is on
// [0, 1), the fit for AVX2 on [-1/2, 1/2].
func (g *generator) exp2Numbers() []float32 {
	if g.avx512 {
		return []float32{1, 0.6931512951850891, 0.24016444385051727, 0.05579992011189461, 0.009017025120556355, 0.0018671314464882016}
	}
	return []float32{1, 0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957, 0.001326472731307149, -127, 0x1.8p23 + 127}
}

func (g *generator) exp2Constants() {
	last := g.registers[len(g.registers)-8:]
	for i, c := range g.exp2Numbers() {
		g.constant(c, last[i])
		g.exp.set(i, last[i])
	}
}

// exp2Memory makes exp2 read its constants from memory.
func (g *generator) exp2Memory() {
	numbers := g.exp2Numbers()
	table := g.everyLane("exp2Constants", floatBits(numbers...))
	for i := range numbers {
		g.exp.set(i, table.Offset(i*g.vectorBytes))
	}
}

func (e *exponential) set(i int, c Op) {
	switch i {
	case 6:
		e.low = c
	case 7:
		e.rounding = c
	default:
		e.c[i] = c
	}
}

// Constants of power for AVX2. powerNumbers are kept in registers. They are c1 to c6 of a minimax
// fit of degree 6 to 2^f on [-1/2, 1/2], then the lower bounds of n and f. Here n is the whole part
// of the exponent and f its fraction. The fit has c0 = 1 and relative error 2e-8. powerTable is
// kept in memory. It holds the rounding constant and c0.
var powerNumbers, powerTable = []float32{0.6931471824645996, 0.24022647738456726, 0.05550329014658928, 0.009618373587727547,
	0.0013399848248809576, 0.00015370704932138324, 0x1.8p23, -1}, []float32{0x1.8p23 + 127, 1}

func (g *generator) powerConstants() {
	if g.avx512 {
		g.exp2Constants()
		return
	}
	for i, c := range powerNumbers {
		g.constant(c, g.registers[len(g.registers)-len(powerNumbers)+i])
	}
}

// power sets x to 2^(by·x). -Inf gives 0, and NaN stays NaN. AVX2 requires by·x <= 128. n and p are
// scratch.
//
// For AVX2, power is more precise than exp2 of a product. The fraction f comes from the unrounded
// product by·x, and the polynomial has a higher degree. The whole part n and the fraction f have
// lower bounds, because x may be -Inf.
func (g *generator) power(x, by, n, p VecPhysical) {
	if g.avx512 {
		VMULPS(by, x, x)
		g.exp2(x, n, p)
		return
	}
	c := g.registers[len(g.registers)-len(powerNumbers):]
	rounding := g.everyLane("powerConstants", floatBits(powerTable...))
	VMOVAPS(x, n)
	VFMADD213PS(rounding, by, n)
	VMAXPS(n, c[6], n) // this operand order keeps a NaN in n
	VSUBPS(rounding, n, p)
	VFMSUB213PS(p, by, x)
	VMAXPS(x, c[7], x)
	VMOVAPS(c[5], p)
	for i := 4; i >= 0; i-- {
		VFMADD213PS(c[i], x, p)
	}
	VFMADD213PS(rounding.Offset(g.vectorBytes), x, p)
	VPSLLD(Imm(23), n, n)
	VMULPS(n, p, x)
}

// exp2 sets x to 2^x. It splits x into a whole number n and a fraction f, computes 2^f by a
// polynomial, and multiplies by 2^n. -Inf gives 0, and NaN stays NaN. AVX2 requires x <= 128. n and
// p are scratch.
//
// In AVX-512, n is the floor of x. VREDUCEPS returns f, which is 0 for an infinite x. VSCALEFPS
// multiplies by 2 to the floor of x, so no instruction computes n.
//
// In AVX2, the last place of exp.rounding is 1. The sum of x and exp.rounding is therefore rounded
// to whole numbers, and its low bits are n + 127. Shifted left, these bits are the float32 2^n: 0
// for n = -127, infinity for n = 128. The multiplication by 2^n keeps a NaN. An integer addition of
// n to the exponent would lose the NaN.
func (g *generator) exp2(x, n, p VecPhysical) { g.exp2Masked(x, n, p, nil) }

// exp2Masked is exp2 with an optional opmask, which requires AVX-512. Lanes whose bits in the
// opmask are clear become 0.
func (g *generator) exp2Masked(x, n, p VecPhysical, mask Op) {
	f := x
	if g.avx512 {
		const floor = 1
		f = n
		VREDUCEPS(Imm(floor), x, f)
	} else {
		low := g.exp.low
		if _, memory := low.(Mem); memory {
			VMOVUPS(low, n)
			low = n
		}
		VMAXPS(x, low, x) // this operand order keeps a NaN in x
		VADDPS(g.exp.rounding, x, n)
		VSUBPS(g.exp.rounding, n, p)
		VSUBPS(p, x, x)
	}
	if _, memory := g.exp.c[5].(Mem); memory {
		VMOVUPS(g.exp.c[5], p)
	} else {
		VMOVAPS(g.exp.c[5], p)
	}
	for i := 4; i >= 0; i-- {
		VFMADD213PS(g.exp.c[i], f, p)
	}
	if g.avx512 {
		if mask != nil {
			VSCALEFPS_Z(x, p, mask, x)
			return
		}
		VSCALEFPS(x, p, x)
	} else {
		VPSLLD(Imm(23), n, n)
		VMULPS(n, p, x)
	}
}

// laneMask sets z to the mask for vector v of a row. The word at mask has one bit for each element
// of the row. A lane of z is all ones if its bit is set, else 0. Instruction sets without opmasks
// use this mask.
func (g *generator) laneMask(mask Mem, v int, z VecPhysical) {
	VPBROADCASTD(mask, z)
	g.maskLanes(v, z)
}

// maskLanes does the work of laneMask for a z that holds the word in each lane.
func (g *generator) maskLanes(v int, z VecPhysical) {
	bits := g.table("laneBits", func() { // bit i is set in element i
		for i := range g.lanes {
			DATA(i*4, U32(1<<i))
		}
	})
	VPAND(g.part(bits, v), z, z)
	VPCMPEQD(g.part(bits, v), z, z)
}

func (g *generator) maskScores() {
	g.arithmetic("maskScores", "func(s *float32, masks *uint32, keys int, rowMax *float32)",
		"sets s[j][i] = -Inf where bit i of masks[j] is clear. It then raises rowMax[i] to the",
		"largest s[j][i], ignoring NaN. s is [keys][LANES], masks is [keys]. keys > 0.")
	rowMax, max := param("rowMax"), g.registers[4:6]
	for v, z := range max {
		VMOVUPS(g.part(Mem{Base: rowMax}, v), z)
	}
	g.hideScores("key", param("s"), param("masks"), param("keys"), rowMax)
	g.done()
}

// hideScores emits a loop over the keys that hides scores and raises the maxima of two registers, 4
// and 5. Then it stores the maxima.
func (g *generator) hideScores(label string, s, masks, keys, rowMax GPVirtual) {
	x, visible, lowest, max := g.registers[0], g.registers[1], g.registers[2], g.registers[4:6]
	g.constant(float32(math.Inf(-1)), lowest)
	Label(label)
	for v, z := range max {
		score := g.part(Mem{Base: s}, v)
		if g.avx512 {
			KMOVW(Mem{Base: masks, Disp: v * 2}, K1)
			VBLENDMPS(score, lowest, K1, x)
		} else {
			g.laneMask(Mem{Base: masks}, v, visible)
			VBLENDVPS(visible, score, lowest, x)
		}
		VMOVUPS(x, score)
		VMAXPS(z, x, z)
	}
	ADDQ(U32(uint32(g.rowBytes)), s)
	ADDQ(Imm(4), masks)
	DECQ(keys)
	JNZ(LabelRef(label))
	for v, z := range max {
		VMOVUPS(z, g.part(Mem{Base: rowMax}, v))
	}
}

// beginWeights sets shift to the larger of rowMax and the lowest finite number. It sets alpha to
// 2^(scale·(m - shift)), with the old m, and multiplies l by alpha. It then sets m to rowMax, which
// may be -Inf. x, n and p are scratch.
func (g *generator) beginWeights(m, rowMax, l, alpha GPVirtual, x, n, p, scale VecPhysical, shift []VecPhysical) {
	for v := range vectors {
		at := func(base GPVirtual) Mem { return g.part(Mem{Base: base}, v) }
		VMOVUPS(at(rowMax), shift[v])
		VMOVUPS(at(m), x)
		VMOVUPS(shift[v], at(m))
		g.constant(-math.MaxFloat32, n)
		VMAXPS(shift[v], n, shift[v])
		VSUBPS(shift[v], x, x)
		VMULPS(scale, x, x)
		g.exp2(x, n, p)
		VMOVUPS(x, at(alpha))
		VMULPS(at(l), x, x)
		VMOVUPS(x, at(l))
	}
}

// expScores emits the routine that replaces S by P = 2^(scale·(S - max)) and updates the running
// maximum and sum.
func (g *generator) expScores() {
	g.arithmetic("expScores", "func(s *float32, keys int, m, rowMax, l, alpha *float32, scale float32)",
		"updates the online softmax with the scores s of a tile. m[i] is the old maximum of",
		"the scores of query i, rowMax[i] is the new maximum, and l[i] is the sum of the weights. The",
		"steps, for j < keys and i < LANES:",
		"",
		"  - alpha[i] = 2^(scale·(m[i] - rowMax[i]))",
		"  - s[j][i] = 2^(scale·(s[j][i] - rowMax[i])), the weights",
		"  - l[i] = alpha[i]·l[i] + Σ over j of s[j][i]",
		"  - m[i] = rowMax[i]",
		"",
		"In the exponents, a rowMax[i] of -Inf counts as the lowest finite number. s is [keys][LANES].",
		"keys > 0.")
	s, keys, m, rowMax, l, alpha := param("s"), param("keys"), param("m"), param("rowMax"), param("l"), param("alpha")
	g.exp2Constants()
	x, n, p, shift, sum, scale := g.registers[0], g.registers[1], g.registers[2], g.registers[3:5], g.registers[5:7], g.registers[7]
	floatParam("scale", scale)
	g.beginWeights(m, rowMax, l, alpha, x, n, p, scale, shift)
	g.sumWeights(s, keys, l, x, n, p, scale, shift, sum)
	g.done()
}

// sumWeights emits a loop over the rows of s, one for each key. It replaces the scores by the
// weights 2^(scale·(s - shift)) and adds the weights to l. keys holds the number of rows. The loop
// advances s. x, n, p and sum are scratch.
func (g *generator) sumWeights(s, keys, l GPVirtual, x, n, p, scale VecPhysical, shift, sum []VecPhysical) {
	Comment("The sum over each half of the keys starts from zero: smaller sums have smaller rounding errors.")
	left := GP64()
	MOVQ(keys, left)
	SHRQ(Imm(1), left)
	SUBQ(left, keys)
	Label("part")
	for _, z := range sum {
		VXORPS(z, z, z)
	}
	Label("key")
	for v := range vectors { // vectors share the scratch registers, which the processor renames
		score := g.part(Mem{Base: s}, v)
		VMOVUPS(score, x)
		VSUBPS(shift[v], x, x) // before scaling, so that large scores lose no digits
		VMULPS(scale, x, x)
		g.exp2(x, n, p)
		VMOVUPS(x, score)
		VADDPS(x, sum[v], sum[v])
	}
	ADDQ(U32(uint32(g.rowBytes)), s)
	DECQ(keys)
	JNZ(LabelRef("key"))
	for v := range vectors {
		VADDPS(g.part(Mem{Base: l}, v), sum[v], sum[v])
		VMOVUPS(sum[v], g.part(Mem{Base: l}, v))
	}
	MOVQ(left, keys)
	XORQ(left, left)
	TESTQ(keys, keys)
	JNZ(LabelRef("part"))
}

// finalizeLSE emits the routine that computes a tile's LSE, and the factors 1/l by which the kernel
// multiplies O.
//
// For x = 2^e (1+f) with 1+f in [sqrt(1/2), sqrt(2)), ln(x) is e ln(2) + f - f²/2 + f³ p(f). Here p
// is a minimax fit of degree 7. The relative error of the logarithm is 2e-8. ln(2) is the sum of
// two constants. The first has 12 bits, so its product with e is exact.
func (g *generator) finalizeLSE() {
	g.arithmetic("finalizeLSE", "func(lse, by, m, l *float32, scale float32)",
		"ends the online softmax of LANES queries. From the maximum m[i] and the sum l[i]",
		"of query i it computes by[i] = 1/l[i] and lse[i] = scale·m[i] + ln(l[i]). Where l[i] is 0, it",
		"sets by[i] = 0 and lse[i] = -Inf instead. Every other l[i] must be a positive normal number or",
		"NaN. All arrays are [LANES].")
	g.endTotals(param("lse"), param("by"), param("m"), param("l"), "scale")
	g.done()
}

// endTotals emits 1/l and LSE of a tile. scaleParam names the parameter that holds the scale.
func (g *generator) endTotals(lse, by, m, l GPVirtual, scaleParam string) {
	fit := []float32{0.3333333134651184, -0.25000306963920593, 0.20001044869422913, -0.166412815451622,
		0.14214496314525604, -0.12998183071613312, 0.12622319161891937, -0.0790274366736412}
	x, e, f, square, sum, c, scale := g.registers[0], g.registers[1], g.registers[2], g.registers[3], g.registers[4], g.registers[5], g.registers[6]
	none := g.registers[7]
	floatParam(scaleParam, scale)
	for v := range vectors {
		at := func(base GPVirtual) Mem { return g.part(Mem{Base: base}, v) }
		VMOVUPS(at(l), x)
		g.word(math.Float32bits(math.Sqrt2/2), c)
		VPSUBD(c, x, e)
		VPSRAD(Imm(23), e, e)
		VPSLLD(Imm(23), e, f)
		VPSUBD(f, x, f)
		g.constant(1, c)
		VSUBPS(c, f, f)
		VDIVPS(x, c, c)
		if g.avx512 {
			VPTESTMD(x, x, K1)
			VMOVAPS_Z(c, K1, c)
		} else {
			VXORPS(none, none, none)
			VCMPPS(Imm(0), x, none, none) // all ones where x is 0
			VANDNPS(c, none, c)
		}
		VMOVUPS(c, at(by))
		VCVTDQ2PS(e, e)
		VMULPS(f, f, square)
		g.constant(fit[len(fit)-1], sum)
		for i := len(fit) - 2; i >= 0; i-- {
			g.constant(fit[i], c)
			VFMADD213PS(c, f, sum)
		}
		VMULPS(f, sum, sum)
		VMULPS(square, sum, sum)
		g.constant(0.693115234375, c)
		VFMADD231PS(c, e, f)
		g.constant(3.194618329871446e-05, c)
		VFMADD231PS(c, e, sum)
		g.constant(0.5, c)
		VFNMADD231PS(c, square, sum)
		VADDPS(f, sum, sum)
		VFMADD231PS(at(m), scale, sum)
		VSUBPS(x, x, x)
		VADDPS(x, sum, sum) // adds 0, or NaN if l is NaN
		g.constant(float32(math.Inf(-1)), c)
		if g.avx512 {
			VMOVAPS(sum, K1, c)
			VMOVUPS(c, at(lse))
		} else {
			VBLENDVPS(none, c, sum, sum)
			VMOVUPS(sum, at(lse))
		}
	}
}
