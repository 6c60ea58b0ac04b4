package safetensors

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
)

// A scanner reads the subset of JSON in headers: objects, strings and lists of natural numbers. It
// replaces encoding/json, which accepts duplicate keys and allocates many bytes per byte of a
// hostile text.
type scanner struct {
	rest string // unread text; valid UTF-8
}

// accept skips white space. If the next character is c, it skips c and returns true.
func (s *scanner) accept(c byte) bool {
	s.rest = strings.TrimLeft(s.rest, " \t\r\n")
	if s.rest == "" || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

func (s *scanner) expect(c byte) error {
	if s.accept(c) {
		return nil
	}
	return fmt.Errorf("found %.20q, want %q", s.rest, c)
}

// object reads an object. It calls member after each key to read the value.
func (s *scanner) object(member func(key string) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	if s.accept('}') {
		return nil
	}
	for {
		key, err := s.string()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		if err := member(key); err != nil {
			return err
		}
		if s.accept('}') {
			return nil
		}
		if err := s.expect(','); err != nil {
			return err
		}
	}
}

// ints reads a list of natural numbers. The result is never nil.
func (s *scanner) ints() ([]int, error) {
	if err := s.expect('['); err != nil {
		return nil, err
	}
	if s.accept(']') {
		return []int{}, nil
	}
	list, _, _ := strings.Cut(s.rest, "]") // the numbers are counted first, because a growing slice would allocate several times their size
	x := make([]int, 0, strings.Count(list, ",")+1)
	for {
		n, err := s.int()
		if err != nil {
			return nil, err
		}
		x = append(x, n)
		if s.accept(']') {
			return x, nil
		}
		if err := s.expect(','); err != nil {
			return nil, err
		}
	}
}

func (s *scanner) int() (int, error) {
	s.rest = strings.TrimLeft(s.rest, " \t\r\n")
	digits := s.rest
	if i := strings.IndexAny(digits, ",]} \t\r\n"); i >= 0 {
		digits = digits[:i]
	}
	s.rest = s.rest[len(digits):]
	n, err := strconv.ParseUint(digits, 10, strconv.IntSize-1)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%.60s overflows int", digits)
	}
	if err != nil || len(digits) > 1 && digits[0] == '0' {
		return 0, fmt.Errorf("found %.60q, want a natural number", digits)
	}
	return int(n), nil
}

// string reads a string.
func (s *scanner) string() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	for i := 0; i < len(s.rest); i++ {
		switch c := s.rest[i]; {
		case c == '"':
			raw := s.rest[:i]
			s.rest = s.rest[i+1:]
			return unescape(raw)
		case c == '\\':
			i++ // the next character cannot end the string
		case c < ' ':
			return "", fmt.Errorf("string %.60q has a control character", s.rest[:i+1])
		}
	}
	return "", fmt.Errorf("string %.60q has no end", s.rest)
}

// unescape replaces the escape sequences in the text between two quotes.
func unescape(raw string) (string, error) {
	i := strings.IndexByte(raw, '\\')
	if i < 0 {
		return raw, nil
	}
	var b strings.Builder
	b.Grow(len(raw))
	for ; i >= 0; i = strings.IndexByte(raw, '\\') {
		r, n := escape(raw[i:])
		if n == 0 {
			return "", fmt.Errorf("string has the bad escape sequence %.12q", raw[i:])
		}
		b.WriteString(raw[:i])
		b.WriteRune(r)
		raw = raw[i+n:]
	}
	b.WriteString(raw)
	return b.String(), nil
}

// escape decodes the escape sequence at the start of s. n is the sequence's length, or 0 if the
// sequence is invalid.
func escape(s string) (r rune, n int) {
	if len(s) < 2 {
		return 0, 0
	}
	if i := strings.IndexByte(`"\/bfnrt`, s[1]); i >= 0 {
		return rune("\"\\/\b\f\n\r\t"[i]), 2
	}
	r, ok := codeUnit(s)
	switch {
	case !ok:
		return 0, 0
	case !utf16.IsSurrogate(r):
		return r, unitSize
	}
	low, _ := codeUnit(s[unitSize:])
	if r = utf16.DecodeRune(r, low); r == unicode.ReplacementChar {
		return 0, 0 // half of a surrogate pair
	}
	return r, 2 * unitSize
}

const unitSize = len(`\u0000`)

// codeUnit decodes the UTF-16 code unit at the start of s.
func codeUnit(s string) (rune, bool) {
	if len(s) < unitSize || s[:2] != `\u` {
		return 0, false
	}
	u, err := strconv.ParseUint(s[2:unitSize], 16, 16)
	return rune(u), err == nil
}
