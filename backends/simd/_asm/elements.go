package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// normGradients emits the routine for the gradients of layer norms. The routine reads each row
// twice: first for the two averages, then for dx.
func (g *generator) normGradients() {
	g.arithmetic("gradients", "func(dx, x, dy, weight, moments, dWeight, dBias *float32, cols, rows int)",
		"computes the gradients of a layer norm. mean and scale of each row are in", "moments, as the routine rows"+g.suffix+" stores them. avg is the average over a row. The steps for each",
		"row:", "", "  - norm = (x - mean)·scale and d = dy·weight", "  - dx = scale·(d - avg(d) - norm·avg(d·norm))", "  - dWeight = dWeight + dy·norm", "  - dBias = dBias + dy", "",
		"x, dy and dx are [rows][cols], and dx may be dy. weight, dWeight and dBias are [cols]. cols,", "rows > 0.")
	dx, x, dy, weight, moments := param("dx"), param("x"), param("dy"), param("weight"), param("moments")
	dWeight, dBias, cols, rows := param("dWeight"), param("dBias"), param("cols"), param("rows")
	r := g.registers
	sums, dots := r[0:2], r[2:4]
	n, d, t, mean, scale, a, b, mask, count := r[4], r[5], r[6], r[7], r[8], r[9], r[10], r[11], r[12]
	left := GP64()
	MOVQ(cols, left)
	g.tailMask(left, mask)
	VXORPS(count, count, count)
	VCVTSI2SSQ(cols, count.AsX(), count.AsX())
	normal := func(e elements) {
		e.load(x, n)
		VSUBPS(mean, n, n)
		VMULPS(scale, n, n)
	}

	Label("row")
	VBROADCASTSS(Mem{Base: moments}, mean)
	VBROADCASTSS(Mem{Base: moments, Disp: 4}, scale)
	ADDQ(Imm(8), moments)
	clearSums([][]VecPhysical{sums, dots})
	g.fourAtATime("sums", cols, mask, func(e elements, i int) {
		normal(e)
		e.load(dy, d)
		e.load(dBias, t)
		VADDPS(d, t, t)
		e.store(t, dBias)
		e.load(dWeight, t)
		VFMADD231PS(n, d, t)
		e.store(t, dWeight)
		e.load(weight, t)
		VMULPS(d, t, t) // 0 beyond the end of the row
		VADDPS(t, sums[i%2], sums[i%2])
		VFMADD231PS(n, t, dots[i%2])
	})
	VADDPS(sums[1], sums[0], sums[0])
	VADDPS(dots[1], dots[0], dots[0])
	g.meanOf(sums[0], count, t, a)
	g.meanOf(dots[0], count, t, b)
	g.fourAtATime("result", cols, mask, func(e elements, _ int) {
		normal(e)
		e.load(dy, d)
		e.load(weight, t)
		VFMSUB213PS(a, t, d)
		VFNMADD231PS(n, b, d)
		VMULPS(scale, d, d)
		e.store(d, dx)
	})
	for _, p := range []GPVirtual{dx, x, dy} {
		LEAQ(Mem{Base: p, Index: cols, Scale: 4}, p)
	}
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}

// meanOf sets every element of mean to the sum of z's elements, divided by count. It destroys z and
// t.
func (g *generator) meanOf(z, count, t, mean VecPhysical) {
	g.addLanes(z, t)
	VDIVSS(count.AsX(), z.AsX(), z.AsX())
	VBROADCASTSS(z.AsX(), mean)
}

func (g *generator) addTo() {
	g.arithmetic("add", "func(sum, x *float32, step, cols, rows int)",
		"adds the rows of the matrix x to the vector sum: sum[c] = sum[c] + Σ over r < rows",
		"of x[r][c], for c < cols. Rows of x are step elements apart. cols, rows > 0.")
	sum, x, step, cols, rows := param("sum"), param("x"), bytes(param("step")), param("cols"), param("rows")
	mask := g.registers[8]
	left := GP64()
	MOVQ(cols, left)
	g.tailMask(left, mask)
	Label("row")
	g.fourAtATime("sum", cols, mask, func(e elements, i int) {
		v, t := g.registers[2*i], g.registers[2*i+1]
		e.load(sum, v)
		e.load(x, t)
		VADDPS(t, v, v)
		e.store(v, sum)
	})
	ADDQ(step, x)
	DECQ(rows)
	JNZ(LabelRef("row"))
	g.done()
}

func (g *generator) adamW() {
	g.arithmetic("adamW", "func(x, mean, square, grad, by *float32, n int)",
		"updates n weights x of a model by AdamW. All arrays are [n], except by, which is",
		"[8]. The steps for each weight:",
		"",
		"  - mean = by[0]·mean + by[1]·grad",
		"  - square = by[2]·square + by[3]·grad²",
		"  - x = by[4]·x - by[5]·mean / (by[6]·sqrt(square) + by[7])",
		"",
		"n > 0.")
	x, mean, square, grad, by, n := param("x"), param("mean"), param("square"), param("grad"), param("by"), param("n")
	r := g.registers
	c, mask, gz, m, v, z := r[:8], r[8], r[9], r[10], r[11], r[12]
	for i := range c {
		VBROADCASTSS(Mem{Base: by, Disp: 4 * i}, c[i])
	}
	left := GP64()
	MOVQ(n, left)
	g.eachVector(n, g.tail(left), mask, func(e elements) {
		e.load(grad, gz)
		e.load(mean, m)
		VMULPS(c[0], m, m)
		VFMADD231PS(c[1], gz, m)
		e.store(m, mean)
		VMULPS(gz, gz, gz)
		e.load(square, v)
		VMULPS(c[2], v, v)
		VFMADD231PS(c[3], gz, v)
		e.store(v, square)
		VSQRTPS(v, v)
		VFMADD213PS(c[7], c[6], v)
		VMULPS(c[5], m, m)
		VDIVPS(v, m, m)
		e.load(x, z)
		VFMSUB213PS(m, c[4], z)
		e.store(z, x)
	})
	g.done()
}
