package tokenizer

import "unicode"

// isSpace reports whether r has the property White_Space.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r > 0xFF && unicode.Is(unicode.Z, r) }

// isWord reports whether r is matched by \w.
func isWord(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.In(r, unicode.Nl, unicode.Nd, unicode.M, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}

// isPunct reports whether r is punctuation, including all symbols of ASCII.
func isPunct(r rune) bool {
	if r < 0x80 {
		return '!' <= r && r <= '/' || ':' <= r && r <= '@' || '[' <= r && r <= '`' || '{' <= r && r <= '~'
	}
	return unicode.Is(unicode.P, r)
}

func isNumeric(r rune) bool { return unicode.IsNumber(r) }

// isMark reports whether r is a nonspacing mark.
func isMark(r rune) bool { return unicode.Is(unicode.Mn, r) }

// isCombining reports whether r is a mark.
func isCombining(r rune) bool { return unicode.Is(unicode.M, r) }

// isControl reports whether BERT's cleaning drops r. Unassigned code points stay.
func isControl(r rune) bool { return r == 0xFFFD || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co) }

// isIdeograph reports whether r is in one of the blocks of ideographs that BERT names. Unicode has
// more such blocks.
func isIdeograph(r rune) bool {
	return r >= 0x3400 && (r <= 0x4DBF || 0x4E00 <= r && r <= 0x9FFF || 0xF900 <= r && r <= 0xFAFF ||
		0x20000 <= r && r <= 0x2A6DF || 0x2A700 <= r && r <= 0x2B81F || 0x2B920 <= r && r <= 0x2CEAF ||
		0x2F800 <= r && r <= 0x2FA1F)
}
