package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (g *generator) elementwise() {
	g.normRows()
	g.normGradients()
	g.addTo()
	g.adamW()
	if g.avx512 {
		g.widenBF16AVX512()
		g.narrowBF16AVX512()
	} else {
		g.widenBF16AVX2()
		g.narrowBF16AVX2()
	}
}

// normRows emits the routine that computes the layer norm of each row. The routine reads a row
// three times: for the mean, for the variance and for the result. The sums for the mean and for the
// variance are split into four partial sums, to hide the latency of additions.
func (g *generator) normRows() {
	g.arithmetic("rows", "func(dst, x, weight, bias, moments *float32, cols, rows int, eps float32)",
		"computes the layer norm of each row of x. For r < rows and c < cols:",
		"", "  - scale = 1 / sqrt(variance of row r + eps)",
		"  - dst[r][c] = (x[r][c] - mean of row r)·scale·weight[c] + bias[c]",
		"  - moments[2r] = mean of row r and moments[2r+1] = scale, unless moments is nil",
		"", "x and dst are [rows][cols], and dst may be x. cols, rows > 0.")
	dst, x, weight, bias, moments, cols, rows := param("dst"), param("x"), param("weight"), param("bias"), param("moments"), param("cols"), param("rows")
	r := g.registers
	sums, v, w, mean, scale, mask, count := r[:4], r[4], r[5], r[6], r[7], r[8], r[9].AsX()
	one := g.numbers("one", 1)
	left := GP64()
	MOVQ(cols, left)
	g.tailMask(left, mask)
	VXORPS(count, count, count)
	VCVTSI2SSQ(cols, count, count)

	Label("row")
	g.fourSums("mean", cols, mask, sums, func(e elements, sum VecPhysical) {
		e.load(x, v)
		VADDPS(v, sum, sum)
	})
	VDIVSS(count, sums[0].AsX(), sums[0].AsX())
	VBROADCASTSS(sums[0].AsX(), mean)
	g.fourSums("variance", cols, mask, sums, func(e elements, sum VecPhysical) {
		e.load(x, v)
		switch {
		case !e.masked:
			VSUBPS(mean, v, v)
		case g.avx512:
			VSUBPS_Z(mean, v, K1, v)
		default:
			VSUBPS(mean, v, v)
			VANDPS(mask, v, v)
		}
		VFMADD231PS(v, v, sum)
	})
	variance, root := sums[0].AsX(), sums[1].AsX()
	VDIVSS(count, variance, variance)
	VADDSS(address("eps"), variance, variance)
	VSQRTSS(variance, variance, variance)
	VMOVSS(one(0), root)
	VDIVSS(variance, root, root)
	VBROADCASTSS(root, scale)
	keepMoments(moments, mean.AsX(), root)
	g.fourAtATime("result", cols, mask, func(e elements, _ int) {
		e.load(x, v)
		VSUBPS(mean, v, v)
		VMULPS(scale, v, v)
		e.load(weight, w)
		e.load(bias, sums[0])
		VFMADD213PS(sums[0], w, v)
		e.store(v, dst)
	})
	LEAQ(Mem{Base: x, Index: cols, Scale: 4}, x)
	LEAQ(Mem{Base: dst, Index: cols, Scale: 4}, dst)
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}

func keepMoments(place GPVirtual, mean, scale Register) {
	TESTQ(place, place)
	JZ(LabelRef("kept"))
	VMOVSS(mean, Mem{Base: place})
	VMOVSS(scale, Mem{Base: place, Disp: 4})
	ADDQ(Imm(8), place)
	Label("kept")
}

// fourAtATime emits a loop over a row: four vectors at a time, then single vectors, then the
// elements left over. body emits the code for one vector. i is the index of the vector among the
// four vectors, and 0 for single vectors.
func (g *generator) fourAtATime(label string, cols GPVirtual, mask VecPhysical, body func(e elements, i int)) {
	e := elements{g: g, at: GP64(), mask: mask}
	loop := func(label string, vectors int, count GPVirtual) {
		JZ(LabelRef(label + "Done"))
		Label(label)
		for i := range vectors {
			body(e, i)
			ADDQ(Imm(uint64(g.vectorBytes)), e.at)
		}
		DECQ(count)
		JNZ(LabelRef(label))
		Label(label + "Done")
	}
	shift := uint64(4+g.vectorBytes/64) - 1 // turns a number of elements into a number of vectors
	n := GP64()
	XORQ(e.at, e.at)
	MOVQ(cols, n)
	SHRQ(Imm(shift+2), n)
	loop(label+"Four", 4, n)
	MOVQ(cols, n)
	SHRQ(Imm(shift), n)
	ANDQ(Imm(3), n)
	loop(label+"One", 1, n)
	TESTQ(U32(uint32(g.vectorBytes/4-1)), cols)
	JZ(LabelRef(label + "End"))
	e.masked = true
	body(e, 0)
	Label(label + "End")
}

// fourSums emits a sum over a row. body adds a vector to one of four partial sums. The first
// element of sums[0] gets the total.
func (g *generator) fourSums(label string, cols GPVirtual, mask VecPhysical, sums []VecPhysical, body func(e elements, sum VecPhysical)) {
	for _, z := range sums {
		VXORPS(z, z, z)
	}
	g.fourAtATime(label, cols, mask, func(e elements, i int) { body(e, sums[i]) })
	VADDPS(sums[1], sums[0], sums[0])
	VADDPS(sums[3], sums[2], sums[2])
	VADDPS(sums[2], sums[0], sums[0])
	g.addLanes(sums[0], sums[1])
}

// addLanes sets the first element of a to the sum of all its elements. It destroys b.
func (g *generator) addLanes(a, b VecPhysical) {
	if g.avx512 {
		VEXTRACTF64X4(Imm(1), a, b.AsY())
		VADDPS(b.AsY(), a.AsY(), a.AsY())
	}
	VEXTRACTF128(Imm(1), a.AsY(), b.AsX())
	VADDPS(b.AsX(), a.AsX(), a.AsX())
	VPERMILPS(Imm(0b01_00_11_10), a.AsX(), b.AsX())
	VADDPS(b.AsX(), a.AsX(), a.AsX())
	VPERMILPS(Imm(0b10_11_00_01), a.AsX(), b.AsX())
	VADDSS(b.AsX(), a.AsX(), a.AsX())
}
