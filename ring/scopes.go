package ring

import "github.com/flashkit-go/flashkit"

// scopes are sets of features: all features of known scope, and features with a parameter per head,
// per position, or per pair of a row and a key.
type scopes struct{ known, head, position, pair flashkit.Feature }

var featureScopes = scopesOf(flashkit.Parameters())

func scopesOf(list []flashkit.Parameter) scopes {
	const all = flashkit.ScopeCall | flashkit.ScopeHead | flashkit.ScopePosition | flashkit.ScopePair
	with := func(s flashkit.Scope) (f flashkit.Feature) {
		for _, x := range list {
			if x.Scope&s != 0 && x.Scope&^all == 0 {
				f |= x.Feature
			}
		}
		return f
	}
	const unlisted = flashkit.FeatureShift | flashkit.FeatureMixed // features of bands and types, which have no Parameter
	return scopes{unlisted | with(all), with(flashkit.ScopeHead), with(flashkit.ScopePosition), with(flashkit.ScopePair)}
}

// check returns an error if a problem has a feature of unknown scope.
func (s *scopes) check(p *flashkit.Problem) error {
	if f := p.Features() &^ s.known; f != 0 {
		return &flashkit.UnsupportedError{Kernel: "ring", Problem: *p, Reason: "does not know how to cut " + f.String()}
	}
	return nil
}
