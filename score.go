package flashkit

import (
	"math"
	"math/bits"
)

// A Score configures changes to the scores before the softmax and to the weights after it. The
// zero value changes nothing. The steps have this order: Q·K, Scale, Softcap, Bias and ALiBi,
// Mask, Ranges and Band, softmax with the sink, dropout.
type Score struct {
	Softcap float32 // c > 0: score s becomes c * tanh(s / c); 0: off
	ALiBi   bool    // subtract slope*|j-i-off| from the score of row i and key j: the head's slope in Args.Slopes times the distance from the band's diagonal
	Bias    bool    // add Args.Bias to the scores. A score of -Inf gives the weight 0
	Mask    bool    // hide the pairs that are false in Args.Mask. As outside a band, a hidden key has no influence on the row, even if it holds NaN
	Ranges  int     // R, 1 or 2: show each row only the keys in its R ranges in Args.Ranges; 0: off. A key outside has no influence on the row
	Sink    bool    // add the head's logit in Args.Sink to the softmax: it takes weight but has no value. LSE includes the logit
	Dropout float32 // p, 0 <= p < 1, rounded to a multiple of 2^-16: drop weights with probability p and multiply the others by 1/(1-p). LSE ignores dropout
	Origin  bool    // with Dropout: the call is a part of a larger problem, at position Args.Origin, and drops the same weights as a call for the whole
}

// A Feature is a set of extensions of dense attention in an unshifted band. A kernel never runs
// a call with a feature that the kernel lacks: Kernel.Fits refuses the call.
type Feature uint32

// The features, each with the field that requests it.
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
	FeatureRanges                      // Score.Ranges
	FeatureInt8                        // Problem.Int8Group
	FeatureRowMax                      // Problem.RowMax
	FeatureKeyMass                     // Problem.KeyMass

	// AllFeatures is the set of all features, for tests. A kernel must list its features one by
	// one, so that it does not claim features added later.
	AllFeatures Feature = 1<<iota - 1

	// ForwardFeatures is the set of features without a backward pass.
	ForwardFeatures = FeaturePage | FeatureCarry | FeatureMixed | FeatureInt8 | FeatureRowMax | FeatureKeyMass
)

var featureNames = func() (names [32]string) {
	name := func(f Feature, s string) { names[bits.TrailingZeros32(uint32(f))] = s }
	name(FeatureShift, "shift")
	name(FeatureMixed, "mixed")
	for _, x := range parameters {
		if x.Feature != 0 {
			name(x.Feature, x.Name)
		}
	}
	return names
}()

// String returns the features' names, separated by commas, such as "softcap,bias". The names
// match the options in a problem's name. Only FeatureMixed differs: its name is "mixed".
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

// A Scope is the set of quantities that determine a feature's effect on a (row, key) pair. A
// call for a part of a problem gives the same results as a call for the whole problem if the
// call preserves these quantities. 0 means unknown.
type Scope uint8

// The scopes.
const (
	ScopeCall     Scope = 1 << iota // only the call's parameters, equal for all pairs
	ScopeHead                       // the query head, as an index of a tensor
	ScopePosition                   // the positions of row and key in their sequence
	ScopePair                       // the row and key, as indices of a tensor
	ScopeRange                      // the row as an index of a tensor, whose elements are key positions
	ScopeKey                        // the key, as an index of a tensor that all rows share
	ScopeRow                        // all keys that the row sees, for an output of each row
)

// A Parameter describes a field of Problem other than dimensions, types and band. The field's
// zero value turns the parameter off or selects its default; the problem's name then omits the
// parameter.
type Parameter struct {
	Name    string  // in problem names, such as "softcap"
	Field   string  // path in Problem, such as "Score.Softcap"
	Feature Feature // feature that the field requests, 0 for Scale
	Scope   Scope   // scope of the feature
	Value   string  // symbol of the value, such as "c"; "" for a bool
	About   string  // effect, in one line
	of      func(p *Problem) any
}

var parameters = [...]Parameter{
	{"scale", "Scale", 0, ScopeCall, "x", "multiply Q·K by x (default 1/sqrt(head dim))", func(p *Problem) any { return &p.Scale }},
	{"softcap", "Score.Softcap", FeatureSoftcap, ScopeCall, "c", "replace scores s by c*tanh(s/c), after the scale and before bias and masks", func(p *Problem) any { return &p.Score.Softcap }},
	{"alibi", "Score.ALiBi", FeatureALiBi, ScopeHead | ScopePosition, "", "subtract slope times distance from scores", func(p *Problem) any { return &p.Score.ALiBi }},
	{"bias", "Score.Bias", FeatureBias, ScopePair, "", "add a bias to scores", func(p *Problem) any { return &p.Score.Bias }},
	{"mask", "Score.Mask", FeatureMask, ScopePair, "", "hide pairs of a row and a key", func(p *Problem) any { return &p.Score.Mask }},
	{"ranges", "Score.Ranges", FeatureRanges, ScopeHead | ScopeRange, "r", "show each row only the keys in its r ranges, 1 or 2", func(p *Problem) any { return &p.Score.Ranges }},
	{"sink", "Score.Sink", FeatureSink, ScopeHead, "", "add a score without a value to the softmax of each head", func(p *Problem) any { return &p.Score.Sink }},
	{"dropout", "Score.Dropout", FeatureDropout, ScopePosition, "p", "drop weights with probability p, 0 <= p < 1, rounded to a multiple of 2^-16, and multiply the others by 1/(1-p)", func(p *Problem) any { return &p.Score.Dropout }},
	{"origin", "Score.Origin", FeatureOrigin, ScopePosition, "", "in a part of a larger problem: drop the weights that a call of the larger problem drops", func(p *Problem) any { return &p.Score.Origin }},
	{"int8group", "Int8Group", FeatureInt8, ScopeKey, "g", "read K and V as int8, with a scale for each g elements of a row: 32, 64 or the larger head dim", func(p *Problem) any { return &p.Int8Group }},
	{"ragged", "Ragged", FeatureRagged, ScopeCall, "", "let sequences differ in length", func(p *Problem) any { return &p.Ragged }},
	{"page", "Page", FeaturePage, ScopeCall, "n", "read K and V from pages of n keys", func(p *Problem) any { return &p.Page }},
	{"carry", "Carry", FeatureCarry, ScopeCall, "", "merge the result with O and LSE of earlier keys", func(p *Problem) any { return &p.Carry }},
	{"rowmax", "RowMax", FeatureRowMax, ScopeHead | ScopeRow, "", "also write the largest score of each row", func(p *Problem) any { return &p.RowMax }},
	{"keymass", "KeyMass", FeatureKeyMass, ScopeHead | ScopeRow, "", "also write the sum of the weights of each key", func(p *Problem) any { return &p.KeyMass }},
}

// Parameters returns the fields of Problem other than dimensions, types and band, in the order
// of the problem's name. Code that names, parses or randomly chooses parameters loops over this
// list.
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
		p.Score.Origin, p.Score.Ranges != 0, p.Int8Group != 0, p.RowMax, p.KeyMass,
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
	if s.Ranges < 0 || s.Ranges > maxRanges {
		return problemErr("Score.Ranges", s.Ranges, "must be 1 or %d ranges of each row, or 0 for none", maxRanges)
	}
	if s.Origin && s.Dropout == 0 {
		return problemErr("Score.Origin", true, "needs Dropout, which alone counts from an origin")
	}
	return nil
}
