package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// lowercase replaces each character by its lowercase.
type lowercase struct{}

func (lowercase) normalize(_ *scratch, dst []byte, text string) []byte {
	for _, r := range text {
		dst = appendLower(dst, r)
	}
	return dst
}

// appendLower appends the full lowercase of r without context: of all characters, only U+0130 has a
// lowercase of two characters.
func appendLower(dst []byte, r rune) []byte {
	switch {
	case r < utf8.RuneSelf:
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return append(dst, byte(r))
	case r == 0x130:
		return append(dst, "i\u0307"...)
	}
	return utf8.AppendRune(dst, newLetters.ToLower(r))
}

// stripAccents drops all marks.
type stripAccents struct{}

func (stripAccents) normalize(_ *scratch, dst []byte, text string) []byte {
	for _, r := range text {
		if r < utf8.RuneSelf || classOf(r)&mark == 0 {
			dst = utf8.AppendRune(dst, r)
		}
	}
	return dst
}

// strip drops white space at the beginning, the end, or both.
type strip struct{ left, right bool }

func (n strip) normalize(_ *scratch, dst []byte, text string) []byte {
	if n.left {
		text = strings.TrimLeftFunc(text, isSpace)
	}
	if n.right {
		text = strings.TrimRightFunc(text, isSpace)
	}
	return append(dst, text...)
}

// replace replaces every match of a pattern.
type replace struct {
	pattern pattern
	content string
}

func (n replace) normalize(_ *scratch, dst []byte, text string) []byte {
	for at := 0; ; {
		start, end := n.pattern.find(text, at)
		if start < 0 {
			return append(dst, text[at:]...)
		}
		dst = append(append(dst, text[at:start]...), n.content...)
		at = end
	}
}

// prepend puts a text before a segment that is not empty.
type prepend string

func (n prepend) normalize(_ *scratch, dst []byte, text string) []byte {
	if text != "" {
		dst = append(dst, n...)
	}
	return append(dst, text...)
}

// nmt drops control characters and turns white space and format characters into spaces, as in
// Google's neural machine translation.
type nmt struct{}

func (nmt) normalize(_ *scratch, dst []byte, text string) []byte {
	for _, r := range text {
		switch {
		case 0x1 <= r && r <= 0x8 || r == 0xB || 0xE <= r && r <= 0x1F || r == 0x7F || r == 0x8F || r == 0x9F:
		case r == '\t' || r == '\n' || r == '\f' || r == '\r' || r == 0x1680 || 0x200B <= r && r <= 0x200F ||
			r == 0x2028 || r == 0x2029 || r == 0x2581 || r == 0xFEFF || r == 0xFFFD:
			dst = append(dst, ' ')
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return dst
}

// byteLevel replaces each byte by a printable character, as in GPT-2.
type byteLevel struct{}

func (byteLevel) normalize(_ *scratch, dst []byte, text string) []byte {
	for i := range len(text) {
		dst = append(dst, byteChars[text[i]]...)
	}
	return dst
}

// byteChars has the character of each byte in GPT-2's vocabulary: a printable character of Latin-1
// stands for itself, and the other bytes are U+0100 and the characters after it.
var byteChars = func() (chars [256]string) {
	next := rune(0x100)
	for b := range chars {
		r := rune(b)
		if !('!' <= r && r <= '~' || 0xA1 <= r && r <= 0xAC || 0xAE <= r && r <= 0xFF) {
			r = next
			next++
		}
		chars[b] = string(r)
	}
	return chars
}()

// literal is a pattern that matches a text.
type literal string

func (p literal) find(text string, from int) (start, end int) {
	i := strings.Index(text[from:], string(p))
	if i < 0 {
		return -1, -1
	}
	return from + i, from + i + len(p)
}

// class is a pattern that matches a character of a class.
type class func(r rune) bool

func (p class) find(text string, from int) (start, end int) {
	for i, r := range text[from:] {
		if p(r) {
			return from + i, from + i + utf8.RuneLen(r)
		}
	}
	return -1, -1
}
