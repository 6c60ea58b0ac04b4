// Package scalar has the arithmetic of the kernels in Go: products, sums in a fixed order, and the exponential.
package scalar

import "math"

// Dots sets dst[j] to the dot product of x and row at[j], for each index j of at. The bits
// equal the results of Dot. Row i begins at rows[i*step].
func Dots(dst, x, rows []float32, step int, at []int) {
	n := len(x)
	j := 0
	for ; j+4 <= len(at); j += 4 {
		r0, r1, r2, r3 := rows[at[j]*step:][:n], rows[at[j+1]*step:][:n], rows[at[j+2]*step:][:n], rows[at[j+3]*step:][:n]
		var s0, s1, s2, s3 float32
		i := 0
		for ; i < n-3; i += 4 {
			a, b, c, d := x[i], x[i+1], x[i+2], x[i+3]
			s0 += (float32(a*r0[i]) + float32(b*r0[i+1])) + (float32(c*r0[i+2]) + float32(d*r0[i+3]))
			s1 += (float32(a*r1[i]) + float32(b*r1[i+1])) + (float32(c*r1[i+2]) + float32(d*r1[i+3]))
			s2 += (float32(a*r2[i]) + float32(b*r2[i+1])) + (float32(c*r2[i+2]) + float32(d*r2[i+3]))
			s3 += (float32(a*r3[i]) + float32(b*r3[i+1])) + (float32(c*r3[i+2]) + float32(d*r3[i+3]))
		}
		for ; i < n; i++ {
			a := x[i]
			s0 += float32(a * r0[i])
			s1 += float32(a * r1[i])
			s2 += float32(a * r2[i])
			s3 += float32(a * r3[i])
		}
		dst[j], dst[j+1], dst[j+2], dst[j+3] = s0, s1, s2, s3
	}
	for ; j < len(at); j++ {
		dst[j] = Dot(x, rows[at[j]*step:][:n])
	}
}

// Dot returns the dot product of x and y. It sums four products, then adds this sum to the
// total, which is thus rounded once for four products. The conversions to float32 round
// each product, so no compiler fuses a product with a sum. The kernels wasm/*_scalar sum in
// the same order and get the same bits. So a backward pass of one backend can use the LSE of
// the other backend.
func Dot(x, y []float32) float32 {
	n := len(x)
	y = y[:n]
	var s float32
	i := 0
	for ; i < n-3; i += 4 {
		s += (float32(x[i]*y[i]) + float32(x[i+1]*y[i+1])) + (float32(x[i+2]*y[i+2]) + float32(x[i+3]*y[i+3]))
	}
	for ; i < n; i++ {
		s += float32(x[i] * y[i])
	}
	return s
}

// AddRows adds to dst the sum over j of weights[j] * row at[j]. Row i begins at rows[i*step].
// Each product is rounded before it is added, as in Dot. Otherwise a compiler might fuse
// other products here than in AddRowsToTwo, which must give the same bits.
func AddRows(dst, weights, rows []float32, step int, at []int) {
	for len(at) >= 4 && len(weights) >= 4 { // slices advance, as an index would take a register that the inner loop needs
		w0, w1, w2, w3 := weights[0], weights[1], weights[2], weights[3]
		r0, r1, r2, r3 := rows[at[0]*step:][:len(dst)], rows[at[1]*step:][:len(dst)], rows[at[2]*step:][:len(dst)], rows[at[3]*step:][:len(dst)]
		for i := range dst {
			dst[i] += float32(w0*r0[i]) + float32(w1*r1[i]) + float32(w2*r2[i]) + float32(w3*r3[i])
		}
		at, weights = at[4:], weights[4:]
	}
	for j, row := range at {
		w, r := weights[j], rows[row*step:][:len(dst)]
		for i := range dst {
			dst[i] += float32(w * r[i])
		}
	}
}

// AddRowsToTwo does the work of two calls of AddRows, one for dst0 with weights0 and one for dst1
// with weights1. It reads each row once for both sums, and its results have the same bits. weights0
// and weights1 have the same length, a multiple of four.
func AddRowsToTwo(dst0, dst1, weights0, weights1, rows []float32, step int, at []int) {
	d := len(dst0)
	dst1, weights1, at = dst1[:d], weights1[:len(weights0)], at[:len(weights0)]
	for j := 0; j < len(weights0)-3; j += 4 {
		a0, a1, a2, a3 := weights0[j], weights0[j+1], weights0[j+2], weights0[j+3]
		b0, b1, b2, b3 := weights1[j], weights1[j+1], weights1[j+2], weights1[j+3]
		r0, r1, r2, r3 := rows[at[j]*step:][:d], rows[at[j+1]*step:][:d], rows[at[j+2]*step:][:d], rows[at[j+3]*step:][:d]
		for i := range dst0 {
			x0, x1, x2, x3 := r0[i], r1[i], r2[i], r3[i]
			dst0[i] += float32(a0*x0) + float32(a1*x1) + float32(a2*x2) + float32(a3*x3)
			dst1[i] += float32(b0*x0) + float32(b1*x1) + float32(b2*x2) + float32(b3*x3)
		}
	}
}

// Scale multiplies each element of x by the same number.
func Scale(x []float32, by float32) {
	for i := range x {
		x[i] *= by
	}
}

// Exp returns e^x with an error of at most 0.52 ulp. It returns 0 if the result underflows, and NaN
// for NaN. x is float64 because it is the difference of two scores. If the scores are large, a
// difference rounded to float32 would cause a large error of e^x.
func Exp(x float64) float32 {
	switch {
	case x < ExpLow: // below half the smallest float32
		return 0
	case !(x < ExpHigh): // infinite, or NaN
		return float32(x * math.Inf(1))
	}
	return ExpWithin(x)
}

// Exp is 0 for arguments below ExpLow, and infinite for arguments from ExpHigh on.
const ExpLow, ExpHigh = -104, 89

// ExpWithin is Exp for ExpLow <= x < ExpHigh. It is small enough for the compiler to inline.
//
// Let 32*x*log2(e) = 32*n + k + f, with n and k whole numbers and |f| <= 1/2. Then e^x is 2^n *
// 2^(k/32) * 2^(f/32). The last factor is computed by its Taylor polynomial, and the factor before
// it is read from a table. All steps are in float64, so almost all of the error is the rounding of
// the result to float32. No product is fused with a sum, so the bits are the same on every
// processor.
func ExpWithin(x float64) float32 {
	const (
		c1 = math.Ln2 / 32 // (ln(2)/32)^k / k!
		c2 = c1 * c1 / 2
		c3 = c2 * c1 / 3

		round = 0x1.8p52 // numbers of this size have a distance of 1, so adding round rounds to a whole number
	)
	y := float64(x * (32 * math.Log2E))
	n := y + round
	f, bits := y-(n-round), math.Float64bits(n)
	t := math.Float64frombits(math.Float64bits(exp2Of32nds[bits%32]) + bits>>5<<52)
	return float32(t + float64(t*(f*(c1+float64(f*(c2+float64(f*c3)))))))
}

// exp2Of32nds has 2^(k/32) at index k.
var exp2Of32nds = [32]float64{
	0x1p+0, 0x1.059b0d3158574p+0, 0x1.0b5586cf9890fp+0, 0x1.11301d0125b51p+0,
	0x1.172b83c7d517bp+0, 0x1.1d4873168b9aap+0, 0x1.2387a6e756238p+0, 0x1.29e9df51fdee1p+0,
	0x1.306fe0a31b715p+0, 0x1.371a7373aa9cbp+0, 0x1.3dea64c123422p+0, 0x1.44e086061892dp+0,
	0x1.4bfdad5362a27p+0, 0x1.5342b569d4f82p+0, 0x1.5ab07dd485429p+0, 0x1.6247eb03a5585p+0,
	0x1.6a09e667f3bcdp+0, 0x1.71f75e8ec5f74p+0, 0x1.7a11473eb0187p+0, 0x1.82589994cce13p+0,
	0x1.8ace5422aa0dbp+0, 0x1.93737b0cdc5e5p+0, 0x1.9c49182a3f090p+0, 0x1.a5503b23e255dp+0,
	0x1.ae89f995ad3adp+0, 0x1.b7f76f2fb5e47p+0, 0x1.c199bdd85529cp+0, 0x1.cb720dcef9069p+0,
	0x1.d5818dcfba487p+0, 0x1.dfc97337b9b5fp+0, 0x1.ea4afa2a490dap+0, 0x1.f50765b6e4540p+0,
}
