package tokenizer

import (
	"slices"
	"sync"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A form is one of Unicode's normalization forms. Package norm gives the properties of single
// characters only: its functions for texts insert U+034F into long series of marks, and its
// iterators panic on some texts.
type form struct {
	form    norm.Form // NFD or NFKD
	compose bool
}

func (n form) normalize(s *scratch, dst []byte, text string) []byte {
	d := decomposer{dst: dst, marks: s.marks[:0], compose: n.compose, starter: -1}
	for i := 0; i < len(text); {
		if c := text[i]; c < utf8.RuneSelf {
			d.add(rune(c), 0)
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		d.decompose(n.form, r)
		i += size
	}
	d.flush()
	s.marks = d.marks
	return d.dst
}

// A decomposer appends characters in canonical order, composed if compose is true. After a starter,
// a character of combining class 0, it keeps the marks until the next starter.
type decomposer struct {
	dst     []byte
	marks   []rune // combining class << 23 | character
	compose bool
	starter rune // not yet in dst, or -1; only if compose is true
}

// hangul is the first Hangul syllable, and hangulEnd the code point after the last. A syllable's
// decomposition is arithmetic on its code point.
const (
	hangul, hangulEnd = 0xAC00, 0xD7A4
	leads, leadCount  = 0x1100, 19
	vowels, vowelEnd  = 0x1161, 0x1176
	tails, tailEnd    = 0x11A7, 0x11C3 // tails itself is no tail
)

// decompose adds the full decomposition of r.
func (d *decomposer) decompose(f norm.Form, r rune) {
	if s := r - hangul; s >= 0 && s < hangulEnd-hangul {
		d.add(leads+s/588, 0)
		d.add(vowels+s%588/28, 0)
		if s%28 != 0 {
			d.add(tails+s%28, 0)
		}
		return
	}
	if classOf(r)&normal == 0 {
		d.add(r, 0)
		return
	}
	parts, ccc := properties(f, r)
	if len(parts) == 0 {
		d.add(r, ccc)
	}
	for len(parts) > 0 {
		r, n := utf8.DecodeRune(parts)
		d.add(r, combiningClass(r))
		parts = parts[n:]
	}
}

// properties returns the decomposition of r, or nothing, and its combining class.
func properties(f norm.Form, r rune) ([]byte, uint8) {
	var b [utf8.UTFMax]byte
	p := f.Properties(b[:utf8.EncodeRune(b[:], r)])
	return p.Decomposition(), p.CCC()
}

func combiningClass(r rune) uint8 {
	if classOf(r)&normal == 0 {
		return 0
	}
	_, ccc := properties(norm.NFD, r)
	return ccc
}

// add adds a character that has no decomposition.
func (d *decomposer) add(r rune, ccc uint8) {
	if ccc > 0 {
		d.marks = append(d.marks, rune(ccc)<<23|r)
		return
	}
	d.settle()
	if d.starter >= 0 && len(d.marks) == 0 {
		if c := composition(d.starter, r); c >= 0 {
			d.starter = c
			return
		}
	}
	d.flush()
	if d.compose {
		d.starter = r
	} else {
		d.dst = utf8.AppendRune(d.dst, r)
	}
}

// settle sorts the marks and composes the starter with them. A mark is blocked by a mark before it
// that remains and has the same class.
func (d *decomposer) settle() {
	sortMarks(d.marks)
	if d.starter < 0 {
		return
	}
	kept, last := d.marks[:0], rune(0)
	for _, m := range d.marks {
		if m>>23 > last {
			if c := composition(d.starter, m&(1<<23-1)); c >= 0 {
				d.starter = c
				continue
			}
		}
		kept, last = append(kept, m), m>>23
	}
	d.marks = kept
}

// flush appends the starter and the marks.
func (d *decomposer) flush() {
	d.settle()
	if d.starter >= 0 {
		d.dst = utf8.AppendRune(d.dst, d.starter)
	}
	for _, m := range d.marks {
		d.dst = utf8.AppendRune(d.dst, m&(1<<23-1))
	}
	d.marks, d.starter = d.marks[:0], -1
}

// sortMarks sorts marks by their combining class. Marks of one class keep their order.
func sortMarks(marks []rune) {
	if len(marks) > 1 {
		slices.SortStableFunc(marks, func(a, b rune) int { return int(a>>23) - int(b>>23) })
	}
}

// composition returns the primary composite of two characters, or -1.
func composition(a, b rune) rune {
	switch l, s := a-leads, a-hangul; {
	case b < 0x300 || a < '<':
		return -1
	case l >= 0 && l < leadCount && b >= vowels && b < vowelEnd:
		return hangul + l*588 + (b-vowels)*28
	case s >= 0 && s < hangulEnd-hangul && s%28 == 0 && b > tails && b < tailEnd:
		return a + b - tails
	}
	if c, ok := compositions()[[2]rune{a, b}]; ok {
		return c
	}
	return -1
}

// compositions has the primary composites, except Hangul. The last character of a composite's
// decomposition composes with the composite of the other characters.
var compositions = sync.OnceValue(func() map[[2]rune]rune {
	pairs := map[[2]rune]rune{}
	for r := rune(0xC0); r < 0x30000; r++ {
		if r == hangul {
			r = hangulEnd
		}
		if classOf(r)&normal == 0 {
			continue
		}
		parts, _ := properties(norm.NFD, r)
		if len(parts) == 0 || norm.NFC.String(string(r)) != string(r) {
			continue
		}
		b, n := utf8.DecodeLastRune(parts)
		if first := []rune(norm.NFC.String(string(parts[:len(parts)-n]))); len(first) == 1 {
			pairs[[2]rune{first[0], b}] = r
		}
	}
	return pairs
})
