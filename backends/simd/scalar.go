package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// The portable kernels work on tiles of up to tileQ query rows and tileK keys:
// small enough for the first-level cache at common head dims, large enough that
// a key tile is widened from 16 bits once for many rows.
const (
	tileQ = 64
	tileK = 64
)

// tileSize returns the most rows and keys that a tile of the problem has, so that
// workspace is not many times the tensors where heads are wide and few.
func tileSize(p *flashkit.Problem) (rows, keys int) { return min(tileQ, p.QLen), min(tileK, p.KVLen) }

// ceilDiv returns how many tiles of the given size cover n rows.
func ceilDiv(n, size int) int { return (n + size - 1) / size }

// everyKey is the numbers of the keys of a tile.
var everyKey = func() (at [tileK]int) {
	for i := range at {
		at[i] = i
	}
	return at
}()

// dots sets dst[j] = dot(x, row at[j]) for every j in at, bit for bit. Row i begins at
// rows[i*step].
func dots(dst, x, rows []float32, step int, at []int) {
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
		dst[j] = dot(x, rows[at[j]*step:][:n])
	}
}

// dot adds four products at a time, for a quarter of the roundings of the sum. Each is
// rounded by itself, fused by no compiler: wasm/*_scalar sums in the same order, so that
// one's LSE serves the other.
func dot(x, y []float32) float32 {
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

// dotsInHalves is dots of the halves of x and of rows, added up: dP, from which a delta is
// subtracted that is about as large, keeps more digits.
func dotsInHalves(dst, x, rows []float32, step int, at []int) {
	if len(at) == 0 {
		return // nor rows
	}
	var second [tileK]float32
	half := len(x) / 2 &^ 3
	dots(dst, x[:half], rows, step, at)
	dots(second[:], x[half:], rows[half:], step, at)
	for j := range at {
		dst[j] += second[j]
	}
}

// dotInHalves is dotsInHalves of one row.
func dotInHalves(x, y []float32) float32 {
	half := len(x) / 2 &^ 3
	return dot(x[:half], y[:half]) + dot(x[half:], y[half:])
}

// axpy adds to dst the sum over j in [0, n) of weights[j*every] * row j. Row j
// begins at rows[j*step].
func axpy(dst, weights []float32, every, n int, rows []float32, step int) {
	d := len(dst)
	j := 0
	for ; j+4 <= n; j += 4 {
		w0, w1, w2, w3 := weights[j*every], weights[(j+1)*every], weights[(j+2)*every], weights[(j+3)*every]
		r0, r1, r2, r3 := rows[j*step:][:d], rows[(j+1)*step:][:d], rows[(j+2)*step:][:d], rows[(j+3)*step:][:d]
		for i := range dst {
			dst[i] += w0*r0[i] + w1*r1[i] + w2*r2[i] + w3*r3[i]
		}
	}
	for ; j < n; j++ {
		w, r := weights[j*every], rows[j*step:][:d]
		for i := range dst {
			dst[i] += w * r[i]
		}
	}
}

// portableRun is the keys, or query rows, of a run, after which the portable kernels
// begin another sum: one sum of very many keeps few digits.
const portableRun = 4 * tileK

// twoSums returns two empty sums: of the run at hand, and of those before it.
func twoSums(ws *arena, n int) (run, past []float32) {
	x := ws.take(2 * n)
	clear(x)
	return x[:n], x[n:]
}

// addRun adds the sum of a run to that of the runs before, and clears it.
func addRun(sum, run []float32) {
	run = run[:len(sum)]
	for i, x := range run {
		sum[i] += x
	}
	clear(run)
}

func scale(x []float32, by float32) {
	for i := range x {
		x[i] *= by
	}
}

// exp returns e^x to within 0.6 ulp, 0 where that underflows, and NaN for NaN.
// The argument is float64 for the sake of large scores: a difference of two of
// them, rounded to float32, would show in e^x.
//
// With x*log2(e) = n + f, n whole and |f| <= 1/2, it is 2^n times the Taylor
// polynomial of e^(f ln 2), in float64 throughout so that the only rounding
// that shows is the last one.
func exp(x float64) float32 {
	switch {
	case x < expLow: // below half the smallest float32
		return 0
	case !(x < expHigh): // infinite, or NaN
		return float32(x * math.Inf(1))
	}
	return exp2(x * math.Log2E)
}

// Below expLow exp is 0, and from expHigh on infinite.
const expLow, expHigh = -104, 89

// exp2 returns 2^y where exp of the logarithm is neither: small enough to be a part of a loop.
func exp2(y float64) float32 {
	const (
		c1 = math.Ln2 // ln(2)^k / k!
		c2 = c1 * math.Ln2 / 2
		c3 = c2 * math.Ln2 / 3
		c4 = c3 * math.Ln2 / 4
		c5 = c4 * math.Ln2 / 5
		c6 = c5 * math.Ln2 / 6
		c7 = c6 * math.Ln2 / 7

		round = 0x1.8p52 // its unit in the last place is 1, so adding it rounds to a whole number
	)
	n := y + round
	f := y - (n - round)
	f2 := f * f
	p := (1 + c1*f) + f2*((c2+c3*f)+f2*((c4+c5*f)+f2*(c6+c7*f)))
	return float32(p * math.Float64frombits((1023+math.Float64bits(n))<<52))
}

// view returns n rows of head h of batch b of t, from row r on, as float32, and
// the distance between them. Float32 rows are read where they lie; 16-bit rows
// are widened into buf.
func view(t *flashkit.Tensor, b, h, r, n int, buf []float32) (rows []float32, step int) {
	if n == 0 {
		return nil, 0
	}
	if t.DType() == flashkit.Float32 {
		return t.Float32s()[t.Offset(b, h, r):], rowStep(t)
	}
	dim := t.Shape()[3]
	for i := range n {
		load(buf[i*dim:][:dim], t, t.Offset(b, h, r+i))
	}
	return buf, dim
}

// rowStep returns the distance between rows. With one row it is never used and
// may hold anything.
func rowStep(t *flashkit.Tensor) int {
	if t.Shape()[2] == 1 {
		return 0
	}
	return t.Strides()[2]
}

// load widens the row of t that begins at offset from.
func load(dst []float32, t *flashkit.Tensor, from int) {
	switch t.DType() {
	case flashkit.Float32:
		copy(dst, t.Float32s()[from:])
	case flashkit.Float16:
		for i, x := range t.Uint16s()[from:][:len(dst)] {
			dst[i] = half.FromF16(x)
		}
	case flashkit.BFloat16:
		for i, x := range t.Uint16s()[from:][:len(dst)] {
			dst[i] = half.FromBF16(x)
		}
	}
}

// store rounds src into the row of t that begins at offset to.
func store(t *flashkit.Tensor, to int, src []float32) {
	switch t.DType() {
	case flashkit.Float32:
		copy(t.Float32s()[to:], src)
	case flashkit.Float16:
		dst := t.Uint16s()[to:][:len(src)]
		for i, x := range src {
			dst[i] = half.ToF16(x)
		}
	case flashkit.BFloat16:
		dst := t.Uint16s()[to:][:len(src)]
		for i, x := range src {
			dst[i] = half.ToBF16(x)
		}
	}
}
