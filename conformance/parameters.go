package conformance

import (
	"math/rand/v2"

	"github.com/flashkit-go/flashkit"
)

// values are numbers for the numeric parameters of problems.
type values struct {
	fixed float32   // for conductProblem
	drawn []float32 // for sweeps
}

// valuesOf returns the values for a feature's parameter.
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

// setParameter sets a parameter of p, to number unless it is a bool.
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

// setParameters sets the parameters of features, as far as one problem can combine them.
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

// drawParameter sets a parameter of p to a value drawn from r.
func drawParameter(r *rand.Rand, p *flashkit.Problem, x *flashkit.Parameter) {
	number := float32(0)
	if x.Value != "" {
		drawn := valuesOf(x.Feature).drawn
		number = drawn[r.IntN(len(drawn))]
	}
	setParameter(p, x, number)
}
