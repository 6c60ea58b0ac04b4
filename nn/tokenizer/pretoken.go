package tokenizer

import "unicode/utf8"

// divide is a preTokenizer that splits at the delimiters of a pattern.
type divide struct {
	pattern  pattern
	behavior behavior
	invert   bool
}

func (p divide) split(w *words) { w.divide(p.pattern, p.behavior, p.invert) }

// wordRuns is a pattern that matches the longest runs of word characters, and of characters that are
// neither word characters nor white space.
type wordRuns struct{}

func (wordRuns) find(text string, from int) (start, end int) {
	for from < len(text) {
		r, n := utf8.DecodeRuneInString(text[from:])
		if !isSpace(r) {
			break
		}
		from += n
	}
	if from == len(text) {
		return -1, -1
	}
	r, _ := utf8.DecodeRuneInString(text[from:])
	word := isWord(r)
	for i, r := range text[from:] {
		if isWord(r) != word || !word && isSpace(r) {
			return from, from + i
		}
	}
	return from, len(text)
}
