package tokenizer

import (
	"math"
	"unicode/utf8"
	"unsafe"
)

// A Tokenizer turns text into token ids. It is immutable and safe for concurrent use.
type Tokenizer struct {
	raw, normal   *matcher // added tokens, matched before and after normalization
	normalizers   []normalizer
	preTokenizers []preTokenizer
	model         model
	added         map[string]int32
	single, pair  template
	left          bool // truncation removes the first tokens of a text
	size, most    int
}

// A normalizer rewrites text. It appends the result to dst. Text and result are valid UTF-8. The
// result must not refer to text, whose memory is reused.
type normalizer interface {
	normalize(s *scratch, dst []byte, text string) []byte
}

// A preTokenizer divides words into shorter words. It may also rewrite the words.
type preTokenizer interface {
	split(w *words)
}

// A model turns words into ids. It appends the ids of a word, which is valid UTF-8 and not empty,
// to dst. It must not keep the word, whose memory is reused.
type model interface {
	encode(s *scratch, dst []int32, word string) []int32
	id(token string) (int32, bool)
	count() int // number of tokens in the vocabulary
	len() int   // 1 + the greatest id
}

// An Encoding is the token ids of a text or of a pair of texts. Encode reuses its memory. The zero
// value is ready to use, by one goroutine at a time.
type Encoding struct {
	IDs    []int32 // token ids, with special tokens
	Types  []int32 // type (segment) id of each token
	Tokens int     // length of IDs without truncation
	s      scratch
}

// scratch is memory that encoding reuses.
type scratch struct {
	valid   []byte      // a text whose invalid UTF-8 is replaced
	norm    [2][]byte   // output and input of a normalizer
	marks   []rune      // combining marks that a normalizer sorts
	words   words       // of a segment
	parts   [2][]int32  // ids of the two texts
	found   [2][]extent // added tokens of a text, and of a normalized segment
	merging merging     // of a BPE word
	steps   []step      // of a Unigram word
}

// Len returns 1 + the greatest id.
func (t *Tokenizer) Len() int { return t.size }

// ID returns the id of a token of the vocabulary, or of an added token. It returns false if there is
// no such token.
func (t *Tokenizer) ID(token string) (int32, bool) {
	if id, ok := t.added[token]; ok {
		return id, true
	}
	return t.model.id(token)
}

// MaxTokens returns the most tokens of a text that the files allow: model_max_length of
// tokenizer_config.json, else truncation.max_length of tokenizer.json. It returns 0 if the files have
// no limit.
func (t *Tokenizer) MaxTokens() int { return t.most }

// Encode stores the ids of text, with special tokens, in e. If max is not 0, IDs has at most max
// tokens, but always all special tokens. Truncation removes tokens at the end of the text, or at its
// beginning if the files say so. Encode allocates only memory that e lacks.
func (t *Tokenizer) Encode(e *Encoding, max int, text string) {
	e.s.parts[0] = t.sequence(&e.s, e.s.parts[0][:0], text)
	e.s.parts[1] = e.s.parts[1][:0]
	t.assemble(e, max, &t.single)
}

// EncodePair stores the ids of two texts in e, like Encode. Truncation shortens the longer text
// first.
func (t *Tokenizer) EncodePair(e *Encoding, max int, a, b string) {
	e.s.parts[0] = t.sequence(&e.s, e.s.parts[0][:0], a)
	e.s.parts[1] = t.sequence(&e.s, e.s.parts[1][:0], b)
	t.assemble(e, max, &t.pair)
}

// assemble truncates the texts and joins them and the special tokens.
func (t *Tokenizer) assemble(e *Encoding, most int, x *template) {
	a, b := e.s.parts[0], e.s.parts[1]
	e.Tokens = x.special
	for _, p := range x.pieces {
		if p.sequence >= 0 {
			e.Tokens += len(e.s.parts[p.sequence])
		}
	}
	if most > 0 {
		n, m := shares(len(a), len(b), max(0, most-x.special))
		a, b = t.cut(a, n), t.cut(b, m)
	}
	e.IDs, e.Types = e.IDs[:0], e.Types[:0]
	for _, p := range x.pieces {
		ids := p.ids
		if p.sequence >= 0 {
			ids = [2][]int32{a, b}[p.sequence]
		}
		e.IDs = append(e.IDs, ids...)
		for range ids {
			e.Types = append(e.Types, p.kind)
		}
	}
}

// shares returns how many of n and m tokens remain if at most limit remain: the longer text is
// shortened first.
func shares(n, m, limit int) (int, int) {
	switch short := min(n, m); {
	case n+m <= limit:
	case short > limit/2: // both are shortened; the longer text has the odd token
		if n > m {
			return limit/2 + limit%2, limit / 2
		}
		return limit / 2, limit/2 + limit%2
	case n > m:
		return limit - m, m
	default:
		return n, limit - n
	}
	return n, m
}

func (t *Tokenizer) cut(ids []int32, n int) []int32 {
	if t.left {
		return ids[len(ids)-n:]
	}
	return ids[:n]
}

// sequence appends the ids of a text, without special tokens of the template.
func (t *Tokenizer) sequence(s *scratch, dst []int32, text string) []int32 {
	if !utf8.ValidString(text) {
		s.valid = s.valid[:0]
		for _, r := range text {
			s.valid = utf8.AppendRune(s.valid, r)
		}
		text = view(s.valid)
	}
	s.found[0] = t.raw.split(s.found[0][:0], text)
	for _, x := range s.found[0] {
		if x.id >= 0 {
			dst = append(dst, x.id)
		} else {
			dst = t.segment(s, dst, text[x.from:x.to], x.from == 0)
		}
	}
	return dst
}

// segment appends the ids of a part of a text that has no added token before normalization. first is
// true if the text begins with the segment.
func (t *Tokenizer) segment(s *scratch, dst []int32, text string, first bool) []int32 {
	text = t.normalized(s, text)
	s.found[1] = t.normal.split(s.found[1][:0], text)
	for _, x := range s.found[1] {
		if x.id >= 0 {
			dst = append(dst, x.id)
			continue
		}
		w := &s.words
		w.text, w.list = append(w.text[:0], text[x.from:x.to]...), append(w.list[:0], word{0, x.to - x.from})
		w.first = first && x.from == 0
		for _, p := range t.preTokenizers {
			p.split(w)
		}
		all := view(w.text)
		for _, x := range w.list {
			dst = t.model.encode(s, dst, all[x.from:x.to])
		}
	}
	return dst
}

// normalized returns a segment after all normalizers. The result is valid until the next call.
func (t *Tokenizer) normalized(s *scratch, text string) string {
	for i, n := range t.normalizers {
		b := &s.norm[i%2]
		*b = n.normalize(s, (*b)[:0], text)
		text = view(*b)
	}
	return text
}

// view returns a string in the memory of b. It is valid until b changes.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// validID reports whether a file's id is an id.
func validID(id int32) bool { return id >= 0 && id < math.MaxInt32 }
