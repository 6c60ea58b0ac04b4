package flashkit

import (
	"math"
	"math/bits"
)

// A Score says what happens to a scaled score before the softmax and to its
// weight after. The zero value is plain attention. The order is: dot product,
// Scale, Softcap, Bias and ALiBi, Mask and Band, softmax (with the sink), dropout.
type Score struct {
	Softcap float32 // c > 0: the score s becomes c * tanh(s / c); 0: it stays
	ALiBi   bool    // Args.Slopes: minus the head's slope times the distance |j-i-off| from the band's diagonal is added
	Bias    bool    // Args.Bias is added. -Inf is a score like any other
	Mask    bool    // Args.Mask hides keys as a band does: no influence, even when they hold NaN
	Sink    bool    // Args.Sink: a logit of each head that takes weight and has no value; LSE includes it
	Dropout float32 // p, from 0 up to but not 1, rounded to a multiple of 2^-16: weights are dropped with this probability, the others multiplied by 1/(1-p); LSE is that without dropout
	Origin  bool    // of dropout: the call is a part of a whole, and drops what a call of the whole does there; Args.Origin says where
}

// A Feature is a set of what a problem may ask beyond dense attention in a band
// that ends at a corner. A kernel is never given a feature that it does not name.
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

	// AllFeatures is every feature that there is, for tests. A kernel names what it takes
	// one by one, or it would claim those of later versions too.
	AllFeatures Feature = 1<<iota - 1

	// ForwardFeatures are those that have no backward pass.
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

// String returns the names of the features with commas, as options of a
// problem's name begin: "softcap,bias". That of keys of another type is "mixed".
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

// A Scope is a set of what a feature's effect on a pair of a row and a key depends on. A part of a call has the results of
// the whole if it keeps all of it. 0 is unknown.
type Scope uint8

// The scopes.
const (
	ScopeCall     Scope = 1 << iota // nothing of the pair
	ScopeHead                       // the query head, of which a tensor has a number
	ScopePosition                   // the numbers of row and key in their sequence
	ScopePair                       // the pair, of which a tensor has an element
)

// A Parameter describes a field of Problem beyond its dimensions, types and band. The
// zero value of the field asks for nothing and is left out of the problem's name.
type Parameter struct {
	Name    string  // in names of problems, such as "softcap"
	Field   string  // in Problem, such as "Score.Softcap"
	Feature Feature // that the field asks for, 0 for Scale
	Scope   Scope   // of the feature
	Value   string  // the symbol of its number, such as "c"; "" for a bool
	About   string  // what it does, in one line
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

// Parameters returns the fields of Problem beyond its dimensions, types and band, in the
// order of its name. It is the one list of them; whoever names, parses, draws or
// generates them walks it.
func Parameters() []Parameter { return append([]Parameter(nil), parameters[:]...) }

// Of returns a pointer to the parameter's field in p: a *float32, a *int or a *bool.
func (x *Parameter) Of(p *Problem) any { return x.of(p) }

// Count returns the number of features in the set.
func (f Feature) Count() int { return bits.OnesCount16(uint16(f)) }

// Features returns what p asks beyond dense attention in a band.
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
