package npy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A header describes the array in the file's data.
type header struct {
	descr   string
	fortran bool
	shape   []int
}

// parseHeader parses a Python dict with the keys descr, fortran_order and shape. Spaces and
// newlines may follow the dict.
func parseHeader(text string) (header, error) {
	var h header
	s := scanner{rest: text}
	seen := map[string]bool{}
	err := s.dict(func(key string) error {
		if seen[key] {
			return errors.New("duplicate key")
		}
		seen[key] = true
		return h.parseValue(&s, key)
	})
	if err != nil {
		return h, fmt.Errorf("header: %w", err)
	}
	for _, key := range []string{"descr", "fortran_order", "shape"} {
		if !seen[key] {
			return h, fmt.Errorf("header: %s is missing", key)
		}
	}
	if strings.Trim(s.rest, " \n") != "" {
		return h, fmt.Errorf("header has %.20q after the dict", s.rest)
	}
	return h, nil
}

func (h *header) parseValue(s *scanner, key string) (err error) {
	switch key {
	case "descr":
		if s.accept("[") {
			return errors.New("structured types are not supported")
		}
		h.descr, err = s.string()
	case "fortran_order":
		h.fortran, err = s.bool()
	case "shape":
		h.shape, err = s.tuple()
	default:
		err = errors.New("unknown key")
	}
	return err
}

// A scanner reads the subset of Python syntax in headers.
type scanner struct {
	rest string // unread text
}

// accept skips spaces. If the unread text then begins with text, accept skips text and returns
// true.
func (s *scanner) accept(text string) (ok bool) {
	s.rest = strings.TrimLeft(s.rest, " ")
	s.rest, ok = strings.CutPrefix(s.rest, text)
	return ok
}

func (s *scanner) expect(text string) error {
	if s.accept(text) {
		return nil
	}
	return fmt.Errorf("found %.20q, want %q", s.rest, text)
}

// dict reads a dict. It calls value after each key.
func (s *scanner) dict(value func(key string) error) error {
	if err := s.expect("{"); err != nil {
		return err
	}
	for !s.accept("}") {
		key, err := s.string()
		if err != nil {
			return err
		}
		if err := s.expect(":"); err != nil {
			return err
		}
		if err := value(key); err != nil {
			return fmt.Errorf("%.60q: %w", key, err)
		}
		if !s.accept(",") {
			return s.expect("}")
		}
	}
	return nil
}

// tuple reads a tuple of natural numbers. The result is never nil.
func (s *scanner) tuple() ([]int, error) {
	if err := s.expect("("); err != nil {
		return nil, err
	}
	list, _, _ := strings.Cut(s.rest, ")") // the slice is made at its full size: growth would allocate several times the result
	x := make([]int, 0, strings.Count(list, ",")+1)
	for !s.accept(")") {
		n, err := s.int()
		if err != nil {
			return nil, err
		}
		x = append(x, n)
		if s.accept(",") {
			continue
		}
		if len(x) == 1 { // in Python (3) is a number
			return nil, fmt.Errorf("found %.20q after the only dimension, want a comma", s.rest)
		}
		return x, s.expect(")")
	}
	return x, nil
}

func (s *scanner) int() (int, error) {
	s.rest = strings.TrimLeft(s.rest, " ")
	digits := s.rest
	if i := strings.IndexAny(digits, ",) "); i >= 0 {
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

func (s *scanner) bool() (bool, error) {
	if s.accept("True") {
		return true, nil
	}
	if s.accept("False") {
		return false, nil
	}
	return false, fmt.Errorf("found %.20q, want True or False", s.rest)
}

// string reads a string. It keeps escape sequences, as no valid header has any.
func (s *scanner) string() (string, error) {
	for _, quote := range []string{"'", `"`} {
		if !s.accept(quote) {
			continue
		}
		text, rest, ok := strings.Cut(s.rest, quote)
		if !ok {
			return "", fmt.Errorf("string %.60q has no end", s.rest)
		}
		s.rest = rest
		return text, nil
	}
	return "", fmt.Errorf("found %.20q, want a string", s.rest)
}
