package conformance

import (
	"math/rand/v2"

	"github.com/flashkit-go/flashkit"
)

// values are the numbers that tests use for a numeric parameter of a problem.
type values struct {
	fixed float32   // used by conductProblem
	drawn []float32 // sweeps draw one of these
}

// valuesOf returns the numbers for the parameter of feature f.
func valuesOf(f flashkit.Feature) values {
	switch f {
	case flashkit.FeatureSoftcap:
		return values{5, []float32{1, 5, 30}}
	case flashkit.FeatureDropout:
		return values{.25, []float32{.1, .5}}
	case flashkit.FeatureRanges:
		return values{2, []float32{1, 2}}
	case flashkit.FeatureInt8:
		return values{32, []float32{32, 64, 1 << 20}} // fitInt8 clamps these to the head dim
	case flashkit.FeaturePage:
		return values{16, []float32{1, 3, 16, 64}}
	}
	return values{.5, []float32{.5, 2}}
}

// setParameter sets a parameter of p: to true if it is a bool, else to number.
func setParameter(p *flashkit.Problem, x *flashkit.Parameter, number float32) {
	switch to := x.Of(p).(type) {
	case *bool:
		*to = true
	case *int:
		*to = int(number)
	case *float32:
		*to = number
	}
}

// setParameters sets the parameters of features. It omits Origin if the problem has no dropout, and
// Page if the problem is not ragged.
func setParameters(p *flashkit.Problem, features flashkit.Feature) {
	for _, x := range flashkit.Parameters() {
		if features&x.Feature != 0 {
			setParameter(p, &x, valuesOf(x.Feature).fixed)
		}
	}
	p.Score.Origin = p.Score.Origin && p.Score.Dropout != 0
	if !p.Ragged {
		p.Page = 0
	}
	fitInt8(p)
}

// drawParameter sets a parameter of p to a value drawn from r.
func drawParameter(r *rand.Rand, p *flashkit.Problem, x *flashkit.Parameter) {
	number := float32(0)
	if x.Value != "" {
		drawn := valuesOf(x.Feature).drawn
		number = drawn[r.IntN(len(drawn))]
	}
	setParameter(p, x, number)
}
