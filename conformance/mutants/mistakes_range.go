package mutants

import "math"

// rangeMistakes are mistakes at the ends of the number range. Each has the name of the trap that
// catches it. A trap is a test case for one mistake.
var rangeMistakes = []mistake{
	// The lowest finite scores.
	{"bias_min_f32", scored(func(c *call, x float32, at pair) (s, slope float32) {
		s, slope = capBiasALiBi(c, x, at)
		return inBase2(s), slope
	})},
	{"bias_min_bf16", emptyUpTo(-3e38)},
	{"bias_min_f16", emptyUpTo(-65000)},
	{"bias_1e30", emptyUpTo(-1e29)},
	{"bias_min_part", func(s *faults) { // treats every tile with an alpha of 0 as a row's first
		first := func(alpha float32) float32 { return alpha + float32(only(alpha == 0, 1)) }
		s.rescaleL, s.rescaleO = first, first
	}},
	{"bias_largest", func(s *faults) {
		s.guard = func(m float32) float32 { return max(float32(m*math.Log2E)*math.Ln2, -math.MaxFloat32) }
	}},

	// One key's score is far above the other keys' scores.
	{"far_key_1e4", exponents(func(n float64) float64 { return float64(int16(int64(n))) })},
	{"far_key_1e8", func(s *faults) { s.past = inBase2 }},
	{"far_key_1e11", exponents(func(n float64) float64 { return float64(int32(int64(n))) })},
	{"far_key_scale", func(s *faults) {
		s.guard = func(m float32) float32 { return max(inBase2(m), -math.MaxFloat32) }
	}},

	// Infinite scores, and scores of NaN.
	{"nan_query", func(s *faults) { s.exp = func(x float32) float32 { return notNaN(float32(math.Exp(float64(x)))) } }},
	{"bias_inf", biasRead(func(x float32) float32 { return min(x, math.MaxFloat32) })},
	{"bias_nan", biasRead(orHidden)},
	{"bias_behind_mask", func(s *faults) { s.masked = func(_ *call, x float32) (float32, bool) { return x + negInf, true } }},

	// Sinks, slopes and earlier keys.
	{"sink_inf", func(s *faults) {
		s.end = func(c *call, r *row, at pair) {
			if sink := c.logit(at.h); sink > math.MaxFloat32 {
				r.reset(sink)
				r.l = 1
			}
		}
	}},
	{"sink_nan", sunk(func(c *call, r *row, at pair) { c.take(r, orHidden(c.logit(at.h)), nil) })},
	{"sink_none", func(s *faults) { s.guard = itself[float32] }},
	{"sink_huge", sunk(func(c *call, r *row, at pair) { c.take(r, inBase2(c.logit(at.h)), nil) })},
	{"alibi_inf", sloped(func(c *call, at pair) float32 { return c.slopeOf(at.b, at.h) })},
	{"alibi_huge", scored(func(c *call, x float32, at pair) (s, slope float32) {
		return x - finiteSlope(c, at)*tile*(float32(abs(fromDiagonal(c.p, at)))/tile), 1
	})},
	{"carry_huge", carriedAs(inBase2)},
	{"carry_nan", carriedAs(orHidden)},
}

// inBase2 returns x converted to base 2 and back, which rounds x or overflows to Inf.
func inBase2(x float32) float32 { return float32(x*math.Log2E) * math.Ln2 }

func notNaN(x float32) float32 {
	if x != x {
		return 0
	}
	return x
}

// orHidden returns x, or -Inf if x is NaN.
func orHidden(x float32) float32 {
	if x != x {
		return negInf
	}
	return x
}

// emptyUpTo returns a mistake that treats a row with no score above x as a row that sees no key.
func emptyUpTo(x float32) func(*faults) {
	return func(s *faults) {
		s.end = func(_ *call, r *row, _ pair) {
			if r.m <= x {
				r.reset(negInf)
			}
		}
	}
}

// exponents returns a mistake that computes exp as a power of 2. The function `kept` changes the
// integer part of the exponent.
func exponents(kept func(n float64) float64) func(*faults) {
	return func(s *faults) {
		s.exp = func(x float32) float32 {
			y := float64(max(x, -math.MaxFloat32)) * math.Log2E
			n := math.Floor(y)
			return float32(math.Ldexp(math.Exp2(y-n), int(kept(max(n, -1<<62)))))
		}
	}
}

func biasRead(as func(x float32) float32) func(*faults) {
	return func(s *faults) {
		s.bias = func(_ *call, t tensor, at int) float32 { return as(value(t, at)) }
	}
}

// carriedAs returns a mistake that changes the LSE of earlier keys.
func carriedAs(as func(lse float32) float32) func(*faults) {
	return func(s *faults) {
		s.carry = func(c *call, r *row, at pair) {
			if lse, o := c.earlier(at); lse != negInf {
				c.take(r, as(lse), o)
			}
		}
	}
}
