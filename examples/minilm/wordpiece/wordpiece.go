// Package wordpiece tokenizes text like BERT. It has the normalizer, pre-tokenizer and greedy
// longest match of Hugging Face's tokenizers for models of that family. RATIONALE.md has the reason
// for this package.
//
// Text may be untrusted: no text causes a panic. Invalid UTF-8 is dropped, as if it were decoded to
// U+FFFD, which BERT's cleaning drops.
package wordpiece

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxRunes is the maximum length of a word in runes after normalization. A longer word becomes
// [UNK].
const maxRunes = 100

// A Tokenizer turns text into token ids of a vocabulary. It is safe for concurrent use.
type Tokenizer struct {
	head, tail    map[string]int32 // pieces at the beginning of a word; pieces within a word, without their prefix ##
	longest       int              // bytes of the longest piece
	special       []special
	cls, sep, unk int32
	size          int
	lowercase     bool
}

// A special token is found in the text before normalization. The search is case-sensitive.
type special struct {
	text string
	id   int32
}

// New reads a model's vocab.txt. Each line is a token, whose id is the number of the line, from 0.
// The vocabulary must have [CLS], [SEP] and [UNK]. If a token is repeated, its last line counts.
// Empty lines have a number, but no token. lowercase is true for uncased models. The Tokenizer then
// also strips accents, as in Hugging Face's tokenizers.
func New(vocab io.Reader, lowercase bool) (*Tokenizer, error) {
	ids, lines, n := map[string]int32{}, bufio.NewScanner(vocab), 0
	for ; lines.Scan(); n++ {
		if n > math.MaxInt32 {
			return nil, fmt.Errorf("wordpiece: vocabulary has more than %d lines", math.MaxInt32)
		}
		if token := strings.TrimRightFunc(lines.Text(), unicode.IsSpace); token != "" {
			ids[token] = int32(n)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("wordpiece: vocabulary, line %d: %w", n+1, err)
	}
	return FromMap(ids, lowercase)
}

// FromMap is like New, for a map from tokens to ids, as in tokenizer.json.
func FromMap(vocab map[string]int32, lowercase bool) (*Tokenizer, error) {
	t := &Tokenizer{head: maps.Clone(vocab), tail: map[string]int32{}, lowercase: lowercase}
	for token, id := range vocab {
		if id < 0 || id == math.MaxInt32 {
			return nil, fmt.Errorf("wordpiece: token %.60q has the id %d", token, id)
		}
		if rest, ok := strings.CutPrefix(token, "##"); ok {
			t.tail[rest] = id
		}
		t.longest, t.size = max(t.longest, len(token)), max(t.size, int(id)+1)
	}
	for _, text := range []string{"[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"} {
		id, ok := t.head[text]
		switch {
		case ok:
			t.special = append(t.special, special{text, id})
		case text != "[PAD]" && text != "[MASK]":
			return nil, fmt.Errorf("wordpiece: vocabulary of %d tokens has no token %s", len(vocab), text)
		}
	}
	t.cls, t.sep, t.unk = t.special[0].id, t.special[1].id, t.special[2].id
	return t, nil
}

// Vocab returns the id of each token.
func (t *Tokenizer) Vocab() map[string]int32 { return maps.Clone(t.head) }

// Len returns the highest id plus 1.
func (t *Tokenizer) Len() int { return t.size }

// Encode appends the ids of [CLS], the text and [SEP] to dst and returns dst. If limit is not 0, it
// appends at most max(limit, 2) ids, of which the last is [SEP]. Special tokens in the text become
// their ids.
func (t *Tokenizer) Encode(dst []int32, text string, limit int) []int32 {
	if limit <= 0 {
		limit = math.MaxInt
	}
	e := encoder{t: t, ids: append(dst, t.cls), end: len(dst) + 1}
	e.end += min(max(limit, 2)-2, math.MaxInt-e.end)
	for text != "" && len(e.ids) < e.end {
		at, s := t.nextSpecial(text)
		e.segment(text[:at])
		e.flush()
		if s.text != "" {
			e.ids = append(e.ids, s.id)
		}
		text = text[at+len(s.text):]
	}
	return append(e.ids[:min(len(e.ids), e.end)], t.sep)
}

// nextSpecial returns the index of the first special token in text, and the token. If there is
// none, it returns the length of text and an empty token.
func (t *Tokenizer) nextSpecial(text string) (int, special) {
	for at := 0; ; at++ {
		next := strings.IndexByte(text[at:], '[')
		if next < 0 {
			return len(text), special{}
		}
		at += next
		for _, s := range t.special {
			if strings.HasPrefix(text[at:], s.text) {
				return at, s
			}
		}
	}
}

// An encoder is the state of encoding a text.
type encoder struct {
	t     *Tokenizer
	ids   []int32
	end   int // most ids before [SEP], including the ids that dst had
	n     int // bytes of the current word
	runes int
	marks int // bytes of combining marks at the word's end, in canonical order
	word  [maxRunes * utf8.UTFMax]byte
}

// segment encodes text without special tokens.
func (e *encoder) segment(text string) {
	for i := 0; i < len(text) && len(e.ids) < e.end; {
		if text[i] < utf8.RuneSelf {
			e.ascii(text[i])
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(text[i:])
		e.wide(r, text[i:i+n])
		i += n
	}
}

// ascii encodes an ASCII character. White space ends the current word. A punctuation character is a
// word of its own. Control characters are dropped. Other characters extend the current word.
func (e *encoder) ascii(c byte) {
	switch {
	case c == ' ' || c == '\t' || c == '\n' || c == '\r':
		e.flush()
	case c < ' ' || c == 0x7f:
	case stands(rune(c)):
		e.add(rune(c))
	default:
		if e.t.lowercase && 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		e.marks = 0
		if e.runes++; e.runes <= maxRunes {
			e.word[e.n] = c
			e.n++
		}
	}
}

// wide encodes a character r beyond ASCII, whose UTF-8 is text. As in Hugging Face's tokenizers,
// control and format characters are dropped before decomposition.
func (e *encoder) wide(r rune, text string) {
	switch {
	case unicode.Is(unicode.Z, r):
		e.flush()
	case r == utf8.RuneError || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co):
		// dropped; unicode.C would also drop unassigned code points, which Hugging Face's
		// tokenizers keep
	case !e.t.lowercase:
		e.add(r)
	default:
		e.decomposed(r, text)
	}
}

// decomposed adds the canonical decomposition of a character, except the nonspacing marks. It
// passes one valid character at a time to package norm, because the iterators of norm can panic on
// longer texts.
func (e *encoder) decomposed(r rune, text string) {
	if s := r - hangul; s >= 0 && s < hangulEnd-hangul {
		e.add(0x1100 + s/588)
		e.add(0x1161 + s%588/28)
		if s%28 != 0 {
			e.add(0x11A7 + s%28)
		}
		return
	}
	parts := norm.NFD.PropertiesString(text).Decomposition()
	if len(parts) == 0 {
		e.stripped(r)
	}
	for len(parts) > 0 {
		r, n := utf8.DecodeRune(parts)
		e.stripped(r)
		parts = parts[n:]
	}
}

// hangul is the first Hangul syllable. hangulEnd is the code point after the last syllable. The
// decomposition of a syllable is arithmetic on its code point.
const hangul, hangulEnd = 0xAC00, 0xD7A4

// stripped adds a character of a decomposition, unless it is a nonspacing mark. Spacing marks that
// follow each other are sorted by combining class. A character of class 0 ends such a series of
// marks, even if the character is a nonspacing mark, which is dropped.
func (e *encoder) stripped(r rune) {
	switch {
	case unicode.Is(unicode.Mn, r):
		if e.marks > 0 && class(r) == 0 {
			e.marks = 0
		}
	case unicode.Is(unicode.Mc, r) && class(r) > 0:
		e.mark(r)
	default:
		e.add(unicode.ToLower(r))
	}
}

// class returns the canonical combining class of r.
func class(r rune) uint8 {
	var b [utf8.UTFMax]byte
	return norm.NFD.Properties(b[:utf8.EncodeRune(b[:], r)]).CCC()
}

// mark inserts a mark among the marks at the word's end: behind the marks of the same or a lower
// class. After maxRunes runes it drops the mark, because the word becomes [UNK] in any order. This
// limits the cost of sorting.
func (e *encoder) mark(r rune) {
	if e.runes++; e.runes > maxRunes {
		return
	}
	at := e.n
	for c := class(r); at > e.n-e.marks; {
		before, n := utf8.DecodeLastRune(e.word[:at])
		if class(before) <= c {
			break
		}
		at -= n
	}
	n := utf8.RuneLen(r)
	copy(e.word[at+n:], e.word[at:e.n])
	utf8.EncodeRune(e.word[at:], r)
	e.n, e.marks = e.n+n, e.marks+n
}

// add appends a character to the current word. A character for which stands is true becomes a word
// of its own.
func (e *encoder) add(r rune) {
	alone := stands(r)
	if alone {
		e.flush()
	}
	e.marks = 0
	if e.runes++; e.runes <= maxRunes {
		e.n += utf8.EncodeRune(e.word[e.n:], r)
	}
	if alone {
		e.flush()
	}
}

// stands reports whether a rune is a word of its own: punctuation, including all of ASCII's
// symbols, or an ideograph.
func stands(r rune) bool {
	if r < utf8.RuneSelf {
		return '!' <= r && r <= '/' || ':' <= r && r <= '@' || '[' <= r && r <= '`' || '{' <= r && r <= '~'
	}
	return ideograph(r) || unicode.Is(unicode.P, r)
}

// ideograph reports whether r is in one of the blocks of ideographs that BERT names. Unicode has
// more such blocks.
func ideograph(r rune) bool {
	return r >= 0x3400 && (r <= 0x4DBF || 0x4E00 <= r && r <= 0x9FFF || 0xF900 <= r && r <= 0xFAFF ||
		0x20000 <= r && r <= 0x2A6DF || 0x2A700 <= r && r <= 0x2B81F || 0x2B920 <= r && r <= 0x2CEAF ||
		0x2F800 <= r && r <= 0x2FA1F)
}

// flush ends the current word and appends its ids: from the left, always the longest piece that
// matches. If a part of the word matches no piece, the whole word becomes [UNK].
func (e *encoder) flush() {
	word, runes := e.word[:e.n], e.runes
	e.n, e.runes, e.marks = 0, 0, 0
	if runes == 0 {
		return
	}
	first := len(e.ids)
	pieces := e.t.head
	for len(word) > 0 && runes <= maxRunes {
		n := min(len(word), e.t.longest)
		id, ok := pieces[string(word[:n])]
		for ; !ok && n > 1; id, ok = pieces[string(word[:n])] {
			n--
		}
		if !ok {
			break
		}
		e.ids, word, pieces = append(e.ids, id), word[n:], e.t.tail
	}
	if len(word) > 0 || runes > maxRunes {
		e.ids = append(e.ids[:first], e.t.unk)
	}
}
