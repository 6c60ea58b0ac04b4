package conformance

import (
	"math/rand/v2"

	"github.com/flashkit-go/flashkit"
)

// values are numbers for the parameters of problems that are numbers.
type values struct {
	fixed float32   // of the problems of conduct
	drawn []float32 // of sweeps
}

// valuesOf returns the values for the parameter of a feature.
func valuesOf(f flashkit.Feature) values {
	switch f {
	case flashkit.FeatureSoftcap:
		return values{5, []float32{1, 5, 30}}
	case flashkit.FeatureDropout:
		return values{.25, []float32{.1, .5}}
	case flashkit.FeaturePage:
		return values{16, []float32{1, 3, 16, 64}}
	}
	return values{.5, []float32{.5, 2}}
}

// setParameter sets a parameter of p, which has the number if it is not a bool.
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

// setParameters sets the parameters of features, as far as a problem can have them together.
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
}

// drawParameter sets a parameter of p, as r says.
func drawParameter(r *rand.Rand, p *flashkit.Problem, x *flashkit.Parameter) {
	number := float32(0)
	if x.Value != "" {
		drawn := valuesOf(x.Feature).drawn
		number = drawn[r.IntN(len(drawn))]
	}
	setParameter(p, x, number)
}
