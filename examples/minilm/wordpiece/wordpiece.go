// Package wordpiece turns text into token ids as BERT does: the normalizer, the
// pre-tokenizer and the greedy longest match of Hugging Face's tokenizers for models of
// that family. RATIONALE.md says why it is here.
//
// Text may come from anyone: nothing panics, and invalid UTF-8 is dropped, as a lossy
// conversion followed by BERT's cleaning drops it.
package wordpiece

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxRunes is the length of the longest word, in runes after normalization, that is not
// unknown for its length alone.
const maxRunes = 100

// A Tokenizer has a vocabulary. It is safe for concurrent use.
type Tokenizer struct {
	head, tail    map[string]int32 // pieces that begin a word, and those that continue one, without ##
	longest       int              // bytes of the longest piece
	special       []special
	cls, sep, unk int32
	size          int
	lowercase     bool
}

// A special token stands for itself in the raw text, whatever the case of the rest.
type special struct {
	text string
	id   int32
}

// New reads a vocabulary, vocab.txt of a model: one token a line, whose ids count from 0.
// It must have [CLS], [SEP] and [UNK]. Of a token on two lines the last counts. Uncased
// models want lowercase, which also strips accents, as in the reference.
func New(vocab io.Reader, lowercase bool) (*Tokenizer, error) {
	t := &Tokenizer{head: map[string]int32{}, tail: map[string]int32{}, lowercase: lowercase}
	lines := bufio.NewScanner(vocab)
	for ; lines.Scan(); t.size++ {
		if t.size > math.MaxInt32 {
			return nil, fmt.Errorf("wordpiece: vocabulary has more than %d lines", math.MaxInt32)
		}
		token := strings.TrimRightFunc(lines.Text(), unicode.IsSpace)
		if rest, ok := strings.CutPrefix(token, "##"); ok {
			t.tail[rest] = int32(t.size)
			t.longest = max(t.longest, len(rest))
		}
		t.head[token] = int32(t.size)
		t.longest = max(t.longest, len(token))
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("wordpiece: vocabulary, line %d: %w", t.size+1, err)
	}
	for _, text := range []string{"[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]"} {
		id, ok := t.head[text]
		switch {
		case ok:
			t.special = append(t.special, special{text, id})
		case text != "[PAD]" && text != "[MASK]":
			return nil, fmt.Errorf("wordpiece: vocabulary of %d lines has no token %s", t.size, text)
		}
	}
	t.cls, t.sep, t.unk = t.special[0].id, t.special[1].id, t.special[2].id
	return t, nil
}

// Len returns the number of ids: one more than the highest.
func (t *Tokenizer) Len() int { return t.size }

// Encode appends the ids of [CLS], the text and [SEP] to dst, at most limit of them and
// [SEP] always the last. A limit of 0 is none; the smallest is 2. Special tokens in the
// text are taken for what they say.
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

// nextSpecial returns the first special token of a text and where it is, or the text's end.
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

// An encoder is the state of one text.
type encoder struct {
	t     *Tokenizer
	ids   []int32
	end   int // length of ids at which [SEP] follows
	n     int // bytes of the word so far
	runes int
	word  [maxRunes * utf8.UTFMax]byte
	nfd   *norm.Iter // nil while the text is ASCII
}

// segment takes text between special tokens. A run without ASCII is normalized in one
// piece. Normalization changes no ASCII character, and none moves across one.
func (e *encoder) segment(text string) {
	for i := 0; i < len(text) && len(e.ids) < e.end; {
		if text[i] < utf8.RuneSelf {
			e.take(rune(text[i]))
			i++
			continue
		}
		from := i
		for i < len(text) && text[i] >= utf8.RuneSelf {
			i++
		}
		e.run(text[from:i])
	}
}

// run takes text without ASCII.
func (e *encoder) run(text string) {
	if !e.t.lowercase {
		for _, r := range text {
			e.take(r)
		}
		return
	}
	if e.nfd == nil {
		e.nfd = new(norm.Iter)
	}
	e.nfd.InitString(norm.NFD, text)
	for !e.nfd.Done() && len(e.ids) < e.end {
		for b := e.nfd.Next(); len(b) > 0; {
			r, n := utf8.DecodeRune(b)
			e.take(r)
			b = b[n:]
		}
	}
}

// take adds a rune to the word, or ends the word.
func (e *encoder) take(r rune) {
	switch {
	case r == ' ' || r == '\t' || r == '\n' || r == '\r':
		e.flush()
		return
	case r < utf8.RuneSelf:
		if r < ' ' || r == 0x7f {
			return
		}
		if e.t.lowercase && 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
	case unicode.Is(unicode.Z, r):
		e.flush()
		return
	case r == utf8.RuneError || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co):
		return // not unicode.C, which has code points that are not assigned; the reference keeps those
	case e.t.lowercase && unicode.Is(unicode.Mn, r):
		return
	case e.t.lowercase:
		r = unicode.ToLower(r)
	}
	alone := stands(r)
	if alone {
		e.flush()
	}
	if e.runes++; e.runes <= maxRunes {
		e.n += utf8.EncodeRune(e.word[e.n:], r)
	}
	if alone {
		e.flush()
	}
}

// stands reports whether a rune is a word by itself: ASCII punctuation, which is more than
// Unicode's, punctuation and ideographs.
func stands(r rune) bool {
	if r < utf8.RuneSelf {
		return '!' <= r && r <= '/' || ':' <= r && r <= '@' || '[' <= r && r <= '`' || '{' <= r && r <= '~'
	}
	return ideograph(r) || unicode.Is(unicode.P, r)
}

// ideograph has the blocks of BERT, which are not all of Unicode's.
func ideograph(r rune) bool {
	return r >= 0x3400 && (r <= 0x4DBF || 0x4E00 <= r && r <= 0x9FFF || 0xF900 <= r && r <= 0xFAFF ||
		0x20000 <= r && r <= 0x2A6DF || 0x2A700 <= r && r <= 0x2B81F || 0x2B920 <= r && r <= 0x2CEAF ||
		0x2F800 <= r && r <= 0x2FA1F)
}

// flush appends the ids of the word: from the left, always the longest piece there is. A
// word of which a part is no piece is unknown as a whole.
func (e *encoder) flush() {
	word, runes := e.word[:e.n], e.runes
	e.n, e.runes = 0, 0
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
