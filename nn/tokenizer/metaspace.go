package tokenizer

import (
	"strings"
	"unicode/utf8"

	"github.com/flashkit-go/flashkit/internal/strict"
)

// metaspace replaces spaces by a character, puts it before words and splits before it, as in
// SentencePiece.
type metaspace struct {
	char        string
	mark        pattern // char
	before      string  // "always", "first" or "never": the words that the character is put before
	keepsSpaces bool    // no split
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
	m.mark = literal(m.char)
	m.keepsSpaces = !f.flag("split", true)
	f.Ignore("str_rep")
	return m
}

// checkFirst refuses prepend_scheme "first" after a normalizer that may drop the first character of a
// text. In the reference the first word is then not at the beginning of the text.
func (t *Tokenizer) checkFirst(r *strict.File) {
	for _, p := range t.preTokenizers {
		if m, ok := p.(metaspace); !ok || m.before != "first" {
			continue
		}
		for _, n := range t.normalizers {
			drops := false
			switch n := n.(type) {
			case bertNormalizer, stripAccents, nmt:
				drops = true
			case strip:
				drops = n.left
			case replace:
				one, ok := n.pattern.(literal)
				drops = !ok || utf8.RuneCountInString(string(one)) > 1 || n.content == ""
			}
			if drops {
				r.Fail("pre_tokenizer.prepend_scheme", "\"first\" is not supported after a normalizer that may drop characters")
			}
		}
	}
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
		w.divide(m.mark, mergedWithNext, false)
	}
}

// byteLevelWords splits by GPT-2's pattern and replaces each byte by a printable character.
type byteLevelWords struct{ prefix, pattern bool }

func newByteLevelWords(f *fields) preTokenizer {
	f.Ignore("trim_offsets")
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
