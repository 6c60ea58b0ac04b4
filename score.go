package flashkit

import (
	"math"
	"math/bits"
)

// A Score configures the changes of a score before the softmax and of its weight after. The
// zero value is plain attention. The order is: Q·K, Scale, Softcap, Bias and ALiBi, Mask and
// Band, softmax with sink, dropout.
type Score struct {
	Softcap float32 // c > 0: score s becomes c * tanh(s / c); 0: off
	ALiBi   bool    // subtract the head's slope in Args.Slopes times |j-i-off|, the distance from the band's diagonal
	Bias    bool    // add Args.Bias. -Inf is an ordinary score
	Mask    bool    // hide the keys that are false in Args.Mask, like a band: no influence, even if they hold NaN
	Sink    bool    // Args.Sink: one logit per head that takes weight and has no value; LSE includes it
	Dropout float32 // p, 0 <= p < 1, rounded to a multiple of 2^-16: drop weights with probability p, multiply the others by 1/(1-p); LSE ignores dropout
	Origin  bool    // of dropout: the call is a part of a larger problem and drops the same weights there; Args.Origin is its position
}

// A Feature is a set of extensions of dense attention in a band that ends at a corner. A call
// never reaches a kernel that lacks one of its features.
type Feature uint16

// The features.
const (
	FeatureShift   Feature = 1 << iota // Band.Shift
	FeatureSoftcap                     // Score.Softcap
	FeatureALiBi                       // Score.ALiBi
	FeatureBias                        // Score.Bias
	FeatureMask                        // Score.Mask
	FeatureSink                        // Score.Sink
	FeatureDropout                     // Score.Dropout
	FeatureRagged                      // Problem.Ragged
	FeaturePage                        // Problem.Page
	FeatureCarry                       // Problem.Carry
	FeatureMixed                       // Problem.KVDType
	FeatureOrigin                      // Score.Origin

	// AllFeatures is the set of all features, for tests. A kernel lists its features one by
	// one, so that it does not claim future ones.
	AllFeatures Feature = 1<<iota - 1

	// ForwardFeatures is the set of features without a backward pass.
	ForwardFeatures = FeaturePage | FeatureCarry | FeatureMixed
)

var featureNames = func() (names [16]string) {
	name := func(f Feature, s string) { names[bits.TrailingZeros16(uint16(f))] = s }
	name(FeatureShift, "shift")
	name(FeatureMixed, "mixed")
	for _, x := range parameters {
		if x.Feature != 0 {
			name(x.Feature, x.Name)
		}
	}
	return names
}()

// String returns the features' names, separated by commas, such as "softcap,bias". Names match
// the options in a problem's name; FeatureMixed is "mixed".
func (f Feature) String() string {
	var names []byte
	for i, name := range featureNames {
		if name != "" && f&(1<<i) != 0 {
			if len(names) > 0 {
				names = append(names, ',')
			}
			names = append(names, name...)
		}
	}
	return string(names)
}

// A Scope is the set of quantities that a feature's effect on a (row, key) pair depends on. A
// part of a call reproduces the whole if it preserves all of them. 0 is unknown.
type Scope uint8

// The scopes.
const (
	ScopeCall     Scope = 1 << iota // the call alone
	ScopeHead                       // the query head, which indexes a tensor
	ScopePosition                   // the row and key positions in their sequence
	ScopePair                       // the pair, which indexes a tensor
)

// A Parameter describes a field of Problem other than dimensions, types and band. The field's
// zero value turns it off and is omitted from the problem's name.
type Parameter struct {
	Name    string  // in problem names, such as "softcap"
	Field   string  // path in Problem, such as "Score.Softcap"
	Feature Feature // requested by the field, 0 for Scale
	Scope   Scope   // of the feature
	Value   string  // symbol of the value, such as "c"; "" for a bool
	About   string  // effect, in one line
	of      func(p *Problem) any
}

var parameters = [...]Parameter{
	{"scale", "Scale", 0, ScopeCall, "x", "multiply Q·K by x (default 1/sqrt(head dim))", func(p *Problem) any { return &p.Scale }},
	{"softcap", "Score.Softcap", FeatureSoftcap, ScopeCall, "c", "bend scores s to c*tanh(s/c), after the scale and before bias and masks", func(p *Problem) any { return &p.Score.Softcap }},
	{"alibi", "Score.ALiBi", FeatureALiBi, ScopeHead | ScopePosition, "", "subtract slope times distance from scores", func(p *Problem) any { return &p.Score.ALiBi }},
	{"bias", "Score.Bias", FeatureBias, ScopePair, "", "add a bias to scores", func(p *Problem) any { return &p.Score.Bias }},
	{"mask", "Score.Mask", FeatureMask, ScopePair, "", "hide pairs of a row and a key", func(p *Problem) any { return &p.Score.Mask }},
	{"sink", "Score.Sink", FeatureSink, ScopeHead, "", "add a logit to each head that takes weight and has no value", func(p *Problem) any { return &p.Score.Sink }},
	{"dropout", "Score.Dropout", FeatureDropout, ScopePosition, "p", "drop weights with probability p, 0 <= p < 1, rounded to a multiple of 2^-16, and multiply the others by 1/(1-p)", func(p *Problem) any { return &p.Score.Dropout }},
	{"origin", "Score.Origin", FeatureOrigin, ScopePosition, "", "of dropout: drop what a call of the whole drops in this part", func(p *Problem) any { return &p.Score.Origin }},
	{"ragged", "Ragged", FeatureRagged, ScopeCall, "", "let sequences differ in length", func(p *Problem) any { return &p.Ragged }},
	{"page", "Page", FeaturePage, ScopeCall, "n", "read K and V from pages of n keys", func(p *Problem) any { return &p.Page }},
	{"carry", "Carry", FeatureCarry, ScopeCall, "", "continue O and LSE of earlier keys", func(p *Problem) any { return &p.Carry }},
}

// Parameters returns the fields of Problem other than dimensions, types and band, in the order
// of its name. Code that names, parses, draws or generates parameters loops over this list.
func Parameters() []Parameter { return append([]Parameter(nil), parameters[:]...) }

// Of returns a pointer to the parameter's field in p: a *float32, a *int or a *bool.
func (x *Parameter) Of(p *Problem) any { return x.of(p) }

// Count returns the number of features in the set.
func (f Feature) Count() int { return bits.OnesCount16(uint16(f)) }

// Features returns the features that p requests.
func (p *Problem) Features() (f Feature) {
	for i, asked := range [...]bool{
		p.Band.shift != 0, p.Score.Softcap != 0, p.Score.ALiBi, p.Score.Bias, p.Score.Mask,
		p.Score.Sink, p.Score.Dropout != 0, p.Ragged, p.Page != 0, p.Carry, p.KVDType != 0,
		p.Score.Origin,
	} {
		if asked {
			f |= 1 << i
		}
	}
	return f
}

func (s *Score) validate() error {
	if c := float64(s.Softcap); c != 0 && !(c >= minScale && c <= math.MaxFloat32) {
		return problemErr("Score.Softcap", s.Softcap, "must be from %.8g on and finite, or 0 for none", minScale)
	}
	if !(s.Dropout >= 0 && s.Dropout < 1) {
		return problemErr("Score.Dropout", s.Dropout, "must be at least 0 and less than 1")
	}
	if s.Origin && s.Dropout == 0 {
		return problemErr("Score.Origin", true, "needs Dropout, which alone counts from an origin")
	}
	return nil
}
