package tokenizer

import (
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// bertNormalizer is BERT's cleaning: control characters are dropped, white space becomes a space,
// ideographs get spaces around them, nonspacing marks are dropped, letters become lowercase.
type bertNormalizer struct{ clean, ideographs, strip, lower bool }

func (n bertNormalizer) normalize(s *scratch, dst []byte, text string) []byte {
	b := bertText{bertNormalizer: n, dst: dst, marks: s.marks[:0]}
	plain := &plainASCII[0]
	if n.lower {
		plain = &plainASCII[1]
	}
	for i := 0; i < len(text); {
		c := text[i]
		if p := plain[c]; p != 0 && len(b.marks) == 0 {
			b.dst = append(b.dst, p)
			i++
			continue
		}
		if c < utf8.RuneSelf {
			b.ascii(c)
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		b.wide(r)
		i += size
	}
	b.flush()
	s.marks = b.marks
	return b.dst
}

// plainASCII has printable characters and spaces, and in the second table their lowercase. Others are
// 0.
var plainASCII = func() (tables [2][256]byte) {
	for c := byte(' '); c < 0x7F; c++ {
		tables[0][c], tables[1][c] = c, c
		if 'A' <= c && c <= 'Z' {
			tables[1][c] += 'a' - 'A'
		}
	}
	return tables
}()

// bertText is the state of normalizing a text.
type bertText struct {
	bertNormalizer
	dst   []byte
	marks []rune // in a decomposition: combining class << 23 | mark, to be sorted
}

func (b *bertText) ascii(c byte) {
	if b.clean && (c < ' ' && c != '\t' && c != '\n' && c != '\r' || c == 0x7F) {
		return // dropped before decomposition, so that marks on both sides of c are sorted together
	}
	if len(b.marks) > 0 {
		b.flush()
	}
	switch {
	case c >= ' ' && c != 0x7F:
		if b.lower && 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
	case !b.clean:
	case c < ' ':
		c = ' '
	}
	b.dst = append(b.dst, c)
}

func (b *bertText) wide(r rune) {
	switch class := classOf(r); {
	case b.clean && class&control != 0:
	case b.clean && class&space != 0:
		b.ascii(' ')
	case b.ideographs && isIdeograph(r):
		b.ascii(' ')
		b.stripped(r, class)
		b.ascii(' ')
	default:
		b.stripped(r, class)
	}
}

// stripped adds a character, or its decomposition without nonspacing marks.
func (b *bertText) stripped(r rune, class byte) {
	switch {
	case !b.strip:
		b.put(r)
		return
	case class&normal == 0:
		b.part(r, 0)
		return
	}
	if s := r - hangul; s >= 0 && s < hangulEnd-hangul {
		b.flush()
		b.put(leads + s/588)
		b.put(vowels + s%588/28)
		if s%28 != 0 {
			b.put(tails + s%28)
		}
		return
	}
	parts, ccc := properties(norm.NFD, r)
	if len(parts) == 0 {
		b.part(r, ccc)
	}
	for len(parts) > 0 {
		r, n := utf8.DecodeRune(parts)
		b.part(r, combiningClass(r))
		parts = parts[n:]
	}
}

// part adds a character of a decomposition, which is in canonical order: other marks than the
// nonspacing are sorted by their combining class.
func (b *bertText) part(r rune, ccc uint8) {
	switch mark := classOf(r)&nonspacing != 0; {
	case ccc == 0:
		b.flush()
		if !mark {
			b.put(r)
		}
	case !mark:
		b.marks = append(b.marks, rune(ccc)<<23|r)
	}
}

func (b *bertText) put(r rune) {
	if b.lower {
		b.dst = appendLower(b.dst, r)
	} else {
		b.dst = utf8.AppendRune(b.dst, r)
	}
}

func (b *bertText) flush() {
	sortMarks(b.marks)
	for _, m := range b.marks {
		b.put(m & (1<<23 - 1))
	}
	b.marks = b.marks[:0]
}

// bertPreTokenizer splits at white space, and makes each punctuation character a word.
type bertPreTokenizer struct{}

func (bertPreTokenizer) split(w *words) {
	ascii := &classes.block[classes.index[0]]
	for _, x := range w.list {
		from := x.from
		for i := x.from; i < x.to; {
			class, size := ascii[w.text[i]], 1
			if w.text[i] >= utf8.RuneSelf {
				var r rune
				r, size = utf8.DecodeRune(w.text[i:x.to])
				class = classOf(r)
			}
			if class&(space|punctuation) != 0 {
				w.add(from, i)
				if from = i + size; class&space == 0 {
					w.add(i, from)
				}
			}
			i += size
		}
		w.add(from, x.to)
	}
	w.done()
}
