package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// metaspace replaces spaces by a character, puts it before words and splits before it, as in
// SentencePiece.
type metaspace struct {
	char        string
	before      string // "always", "first" or "never": the words that the character is put before
	keepsSpaces bool   // no split
}

// newMetaspace reads a Metaspace. Old files have add_prefix_space in place of prepend_scheme.
func newMetaspace(f *fields) preTokenizer {
	m := metaspace{char: f.text("replacement"), before: "always"}
	if _, n := utf8.DecodeRuneInString(m.char); n != len(m.char) || n == 0 {
		f.fail("replacement", "must be a character, not %.60q", m.char)
	}
	if v, ok := f.take("prepend_scheme"); ok {
		m.before = f.oneOf("prepend_scheme", v, "always", "first", "never")
	} else if !f.flag("add_prefix_space", true) {
		m.before = "never"
	}
	if !f.flag("add_prefix_space", true) && m.before != "never" {
		f.fail("add_prefix_space", "contradicts prepend_scheme, %q", m.before)
	}
	m.keepsSpaces = !f.flag("split", true)
	f.harmless("str_rep")
	return m
}

func (m metaspace) split(w *words) {
	b := w.next.text[:0]
	for _, x := range w.list {
		text, from := view(w.text[x.from:x.to]), len(b)
		if m.before == "always" || m.before == "first" && w.first && x.from == 0 {
			if text[0] != ' ' && !strings.HasPrefix(text, m.char) {
				b = append(b, m.char...)
			}
		}
		for i := range len(text) {
			if text[i] == ' ' {
				b = append(b, m.char...)
			} else {
				b = append(b, text[i])
			}
		}
		w.add(from, len(b))
	}
	w.next.text = b
	w.rewritten()
	if !m.keepsSpaces {
		w.divide(literal(m.char), mergedWithNext, false)
	}
}

// byteLevelWords splits by GPT-2's pattern and replaces each byte by a printable character.
type byteLevelWords struct{ prefix, pattern bool }

func newByteLevelWords(f *fields) preTokenizer {
	f.harmless("trim_offsets")
	return byteLevelWords{f.flag("add_prefix_space", true), f.flag("use_regex", true)}
}

func (p byteLevelWords) split(w *words) {
	if p.prefix {
		b := w.next.text[:0]
		for _, x := range w.list {
			from := len(b)
			if w.text[x.from] != ' ' {
				b = append(b, ' ')
			}
			b = append(b, w.text[x.from:x.to]...)
			w.add(from, len(b))
		}
		w.next.text = b
		w.rewritten()
	}
	if p.pattern {
		w.divide(gpt2{}, isolated, false)
	}
	b := w.next.text[:0]
	for _, x := range w.list {
		from := len(b)
		for _, c := range w.text[x.from:x.to] {
			b = append(b, byteChars[c]...)
		}
		w.add(from, len(b))
	}
	w.next.text = b
	w.rewritten()
}
