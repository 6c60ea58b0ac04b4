package tokenizer

import "slices"

// Lowercased returns a Tokenizer that turns letters into lowercase before all other normalization,
// as do_lower_case of sentence-transformers asks for. Added tokens that are matched before
// normalization keep their letters.
func (t *Tokenizer) Lowercased() *Tokenizer {
	if slices.Contains(t.normalizers, normalizer(lowercase{})) {
		return t
	}
	l := *t
	l.normalizers = append([]normalizer{lowercase{}}, t.normalizers...)
	return &l
}
