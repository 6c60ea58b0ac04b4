package tokenizer

import "unicode/utf8"

// A breakClass is a property of a character in the rules of grapheme clusters.
type breakClass uint8

const (
	oth breakClass = iota // other
	ctl                   // control, carriage return, line feed
	ext                   // Extend, also of Indic_Conjunct_Break except ZERO WIDTH NON-JOINER
	lnk                   // Extend, a linker of Indic_Conjunct_Break
	zwj                   // ZERO WIDTH JOINER
	spc                   // SpacingMark
	pre                   // Prepend
	pic                   // Extended_Pictographic
	con                   // a consonant of Indic_Conjunct_Break
	reg                   // Regional_Indicator
	hgL                   // leading consonant of Hangul
	hgV                   // vowel
	hgT                   // trailing consonant
	hLV                   // syllable of leading consonant and vowel
	lvt                   // syllable with a trailing consonant
)

// breakOf returns the class of r.
func breakOf(r rune) breakClass {
	switch {
	case r < ' ' || 0x7F <= r && r < 0xA0:
		return ctl
	case r < 0xA9 || 0x4E00 <= r && r < 0xA000:
		return oth
	case hangul <= r && r < hangulEnd:
		if (r-hangul)%28 == 0 {
			return hLV
		}
		return lvt
	}
	lo, hi := 0, len(graphemes)
	for lo < hi {
		if mid := (lo + hi) / 2; graphemes[mid].last < r {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(graphemes) && graphemes[lo].first <= r {
		return graphemes[lo].class
	}
	return oth
}

// grapheme returns the length in bytes of the first extended grapheme cluster of text, which is not
// empty.
func grapheme(text string) int {
	r, n := utf8.DecodeRuneInString(text)
	before := breakOf(r)
	if before == ctl {
		if r == '\r' && len(text) > n && text[n] == '\n' {
			n++
		}
		return n
	}
	pictograph, consonant := before == pic, before == con // sequences that the next character may extend
	linker, regions := false, 0
	for n < len(text) {
		if before == reg {
			regions++
		}
		r, size := utf8.DecodeRuneInString(text[n:])
		after := breakOf(r)
		switch {
		case after == ext || after == lnk || after == zwj:
			linker = linker || after == lnk
			consonant = consonant && r != 0x200C
			pictograph = pictograph && before != zwj
		case !joined(before, after) && !(after == con && consonant && linker) &&
			!(after == pic && before == zwj && pictograph) && !(before == reg && after == reg && regions%2 == 1):
			return n
		default:
			pictograph, consonant, linker = after == pic, after == con, false
			if after != reg {
				regions = 0
			}
		}
		before, n = after, n+size
	}
	return n
}

// joined reports whether no boundary is between two characters, by the rules that depend on these
// alone. Marks that extend a cluster are no case of it.
func joined(before, after breakClass) bool {
	switch before {
	case pre:
		return after != ctl
	case hgL:
		return after == hgL || after == hgV || after == hLV || after == lvt || after == spc
	case hLV, hgV:
		return after == hgV || after == hgT || after == spc
	case lvt, hgT:
		return after == hgT || after == spc
	}
	return after == spc
}
