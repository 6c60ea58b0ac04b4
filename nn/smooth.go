package nn

import (
	"math"

	"github.com/flashkit-go/flashkit/internal/matmul"
)

// smoothRange bounds the factors of SmoothFactors, and smoothMost the values of Linear.Smooth.
const (
	smoothRange = 32
	smoothMost  = 0x1p60
)

// SmoothFactors returns values for Smooth: for input feature i, the square root of w/p, where w is
// the largest magnitude of the feature's weights and p is peaks[i]. The factors are relative to the
// layer's largest weight and peak, and from 1/32 to 32. SmoothFactors returns nil if all weights or
// all peaks are 0, or if any of them is not finite.
//
// Source: Xiao, Lin, Seznec, Wu, Demouth, Han, SmoothQuant, 2022.
func (l *Linear) SmoothFactors(peaks []float32) []float32 {
	if l.check() != nil || l.Weight.checkData() != nil || len(peaks) != l.in {
		return nil
	}
	weights := make([]float32, l.in)
	for o := range l.out {
		for i, w := range l.Weight.Data[o*l.in:][:l.in] {
			raise(&weights[i], w)
		}
	}
	most := func(list []float32) (x float32) {
		for _, v := range list {
			raise(&x, v)
		}
		return x
	}
	p, w := float64(most(peaks)), float64(most(weights))
	if !(p > 0 && w > 0 && p <= math.MaxFloat32 && w <= math.MaxFloat32) {
		return nil
	}
	factors := make([]float32, l.in)
	for i := range factors {
		const least = 1. / (smoothRange * smoothRange)
		factors[i] = float32(math.Sqrt(max(float64(weights[i])/w, least) / max(float64(peaks[i])/p, least)))
	}
	return factors
}

// raise sets *most to the larger of *most and |x|, or to NaN if one of them is NaN.
func raise(most *float32, x float32) { *most = max(*most, max(x, -x)) }

// weights returns the packed weights, and raises Peaks to the magnitudes of x.
func (l *Linear) weights(s *Step, x *Tensor) *matmul.Packed {
	if l.Peaks != nil {
		if len(l.Peaks) != l.in {
			s.Fail(problem(l.Weight.Name+": Peaks", len(l.Peaks), "must have one element for each of the %d input features", l.in))
			return nil
		}
		for r := range x.Count() {
			for i, v := range x.Data[r*x.stride():][:l.in] {
				raise(&l.Peaks[i], v)
			}
		}
	}
	return l.transposed.of(s, l.Weight, true, l.Precision, l.Smooth)
}

// checkSmooth checks the length of Smooth, and checkFactors its values, before the weights are packed.
func (l *Linear) checkSmooth() error {
	if n := len(l.Smooth); l.Smooth != nil && n != l.in {
		return problem(l.Weight.Name+": Smooth", n, "must have one factor for each of the %d input features", l.in)
	}
	return nil
}

func checkFactors(w *Param, precision Precision, smooth []float32) error {
	for _, x := range smooth {
		if precision == Int8 && !(x >= 1/smoothMost && x <= smoothMost) {
			return problem(w.Name+": Smooth", x, "must be from 2^-60 to 2^60")
		}
	}
	return nil
}
