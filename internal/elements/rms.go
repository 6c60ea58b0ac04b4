package elements

import "math"

// RMSNorm sets dst to x / sqrt(mean(x²) + eps) * (weight + offset). If x has several times as many
// features as weight, each group of len(weight) features is normalized alone. dst has the length of
// x and may be x. len(weight) is at least 1.
func RMSNorm(dst, x, weight []float32, offset, eps float32) {
	n := len(weight)
	for ; len(x) >= n; x, dst = x[n:], dst[n:] {
		x, dst := x[:n], dst[:n]
		scale := rootScale(x, eps)
		for i, w := range weight {
			dst[i] = x[i] * scale * (w + offset)
		}
	}
}

// RMSNormGradients sets dx to the gradient of x. dy is the gradient of RMSNorm's result. It adds the
// gradient of weight to dWeight. dx may be dy.
func RMSNormGradients(dx, x, dy, weight, dWeight []float32, offset, eps float32) {
	n := len(weight)
	for ; len(x) >= n; x, dx, dy = x[n:], dx[n:], dy[n:] {
		x, dx, dy := x[:n], dx[:n], dy[:n]
		scale, dot := rootScale(x, eps), 0.0
		for i, d := range dy {
			dot += float64(d) * float64(weight[i]+offset) * float64(x[i])
			dWeight[i] += d * x[i] * scale
		}
		by := float32(dot/float64(n)) * scale * scale * scale
		for i, d := range dy {
			dx[i] = d*(weight[i]+offset)*scale - x[i]*by
		}
	}
}

// rootScale returns 1 / sqrt(mean(x²) + eps).
func rootScale(x []float32, eps float32) float32 {
	n := len(x)
	var a, b, c, d float32
	for ; len(x) >= 4; x = x[4:] {
		v := (*[4]float32)(x)
		a += v[0] * v[0]
		b += v[1] * v[1]
		c += v[2] * v[2]
		d += v[3] * v[3]
	}
	for _, v := range x {
		a += v * v
	}
	return float32(1 / math.Sqrt((float64(a)+float64(b)+float64(c)+float64(d))/float64(n)+float64(eps)))
}
