package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// The published patterns of the pre-tokenizer Split. They match at every position. Go's regexp cannot
// express them as they are, because of (?!\S).
const (
	gpt2Pattern  = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llamaPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwenPattern  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	gpt4oPattern = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// published are the patterns by their texts.
var published = map[string]pattern{
	gpt2Pattern:  gpt2{},
	llamaPattern: llama{digits: 3},
	qwenPattern:  llama{digits: 1},
	gpt4oPattern: gpt4o{},
	` {2,}`:      spaceRuns{},
}

// spaceRuns is the pattern of SentencePiece's normalizer: at least two spaces.
type spaceRuns struct{}

func (spaceRuns) find(text string, from int) (start, end int) {
	i := strings.Index(text[from:], "  ")
	if i < 0 {
		return -1, -1
	}
	for start, end = from+i, from+i; end < len(text) && text[end] == ' '; {
		end++
	}
	return start, end
}

// A kind is a class of characters in the published patterns.
type kind uint8

const (
	symbolKind kind = iota // none of the others
	letter
	number
	blank
	ending // \r and \n
)

// asciiKinds has the kinds of ASCII characters.
var asciiKinds = func() (kinds [utf8.RuneSelf]kind) {
	for c := range kinds {
		kinds[c] = kindOf(rune(c))
	}
	return kinds
}()

func kindOf(r rune) kind {
	switch {
	case unicode.IsLetter(r) || unicode.Is(newerLetters, r):
		return letter
	case unicode.IsNumber(r) || unicode.Is(newerNumbers, r):
		return number
	case r == '\r' || r == '\n':
		return ending
	case unicode.IsSpace(r):
		return blank
	}
	return symbolKind
}

// kindAt returns the kind and the length of the character at a byte of text. At the end of text the
// length is 0.
func kindAt(text string, at int) (kind, int) {
	if at < len(text) && text[at] < utf8.RuneSelf {
		return asciiKinds[text[at]], 1
	}
	r, n := utf8.DecodeRuneInString(text[at:])
	return kindOf(r), n
}

// run returns the end of the characters of a kind at a byte of text.
func run(text string, at int, k kind) int {
	for at < len(text) {
		k2, n := kindAt(text, at)
		if k2 != k {
			break
		}
		at += n
	}
	return at
}

// blanks returns the end of \s+(?!\S)|\s+ at white space. If endings is true, \s*[\r\n]+ comes first.
func blanks(text string, at int, endings bool) int {
	end, last, before := at, 0, at // before: where the last character begins
	for end < len(text) {
		k, n := kindAt(text, end)
		if k != blank && k != ending {
			break
		}
		before, end = end, end+n
		if k == ending {
			last = end
		}
	}
	switch {
	case endings && last > 0:
		return last
	case end < len(text) && before > at:
		return before
	}
	return end
}

// contraction returns the end of 's, 't, 're, 've, 'm, 'll or 'd at a byte of text, else at. If fold
// is true, letters of any case match.
func contraction(text string, at int, fold bool) int {
	if at+1 >= len(text) || text[at] != '\'' {
		return at
	}
	first := text[at+1]
	second := byte(0)
	if at+2 < len(text) {
		second = text[at+2]
	}
	if fold {
		if first == 0xC5 && second == 0xBF { // U+017F, the long s
			return at + 3
		}
		first, second = lowerASCII(first), lowerASCII(second)
	}
	switch {
	case first == 's' || first == 't' || first == 'm' || first == 'd':
		return at + 2
	case first == 'r' && second == 'e' || first == 'v' && second == 'e' || first == 'l' && second == 'l':
		return at + 3
	}
	return at
}

func lowerASCII(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// gpt2 is GPT-2's pattern.
type gpt2 struct{}

func (gpt2) find(text string, at int) (start, end int) {
	if end := contraction(text, at, false); end > at {
		return at, end
	}
	k, n := kindAt(text, at)
	if from := at + n; text[at] == ' ' && from < len(text) {
		if k, _ := kindAt(text, from); k != blank && k != ending {
			return at, run(text, from, k)
		}
	}
	if k == blank || k == ending {
		return at, blanks(text, at, false)
	}
	return at, run(text, at, k)
}

// llama is the pattern of Llama 3, and of Qwen with one digit.
type llama struct{ digits int }

func (p llama) find(text string, at int) (start, end int) {
	if end := contraction(text, at, true); end > at {
		return at, end
	}
	k, n := kindAt(text, at)
	if k == letter {
		return at, run(text, at, letter)
	}
	if next, _ := kindAt(text, at+n); next == letter && at+n < len(text) && (k == blank || k == symbolKind) {
		return at, run(text, at+n, letter)
	}
	return at, rest(text, at, p.digits, "\r\n")
}

// rest returns the end of \p{N}{1,digits}| ?[^\s\p{L}\p{N}]+[after]*|\s*[\r\n]+|\s+(?!\S)|\s+ at a
// byte of text that begins no word.
func rest(text string, at, digits int, after string) int {
	k, n := kindAt(text, at)
	if k == number {
		for end := at; ; digits-- {
			k, n := kindAt(text, end)
			if digits == 0 || n == 0 || k != number {
				return end
			}
			end += n
		}
	}
	from := at
	if text[at] == ' ' && at+n < len(text) {
		if k, _ = kindAt(text, at+n); k == symbolKind {
			from = at + n
		}
	}
	if k, _ = kindAt(text, from); k != symbolKind {
		return blanks(text, at, true)
	}
	end := run(text, from, symbolKind)
	for end < len(text) && (text[end] == after[0] || text[end] == after[1] || text[end] == after[len(after)-1]) {
		end++
	}
	return end
}

// gpt4o is the pattern of GPT-4o.
type gpt4o struct{}

func (gpt4o) find(text string, at int) (start, end int) {
	k, n := kindAt(text, at)
	tail := [2]int{at + n, at} // with and without a character before the word
	first := 0
	if k == letter || k == number || k == ending {
		first = 1
	}
	for _, word := range [2]func(string, int) int{lowerWord, upperWord} {
		for _, from := range tail[first:] {
			if end := word(text, from); end > from {
				return at, contraction(text, end, true)
			}
		}
	}
	return at, rest(text, at, 3, "\r\n/")
}

// Letters of words in GPT-4o's pattern: those that can be in the first part of a word alone, in the
// second part alone, and in both.
var (
	headTable = []*unicode.RangeTable{unicode.Lu, unicode.Lt}
	bothTable = []*unicode.RangeTable{unicode.Lm, unicode.Lo, unicode.M}
)

// firstPart returns the end of [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]* and the end of its last character of
// [\p{Lm}\p{Lo}\p{M}], or 0.
func firstPart(text string, at int) (end, both int) {
	for end = at; end < len(text); {
		r, n := utf8.DecodeRuneInString(text[end:])
		if unicode.In(r, bothTable...) {
			both = end + n
		} else if !unicode.In(r, headTable...) {
			break
		}
		end += n
	}
	return end, both
}

// lastPart returns the end of [\p{Ll}\p{Lm}\p{Lo}\p{M}]*.
func lastPart(text string, at int) int {
	for at < len(text) {
		r, n := utf8.DecodeRuneInString(text[at:])
		if !unicode.Is(unicode.Ll, r) && !unicode.In(r, bothTable...) {
			break
		}
		at += n
	}
	return at
}

// lowerWord returns the end of firstPart and at least one character of lastPart, or at.
func lowerWord(text string, at int) int {
	end, both := firstPart(text, at)
	if last := lastPart(text, end); last > end {
		return last
	}
	return max(both, at)
}

// upperWord returns the end of at least one character of firstPart, and of lastPart, or at.
func upperWord(text string, at int) int {
	end, _ := firstPart(text, at)
	if end == at {
		return at
	}
	return lastPart(text, end)
}
