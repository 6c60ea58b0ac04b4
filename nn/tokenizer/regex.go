package tokenizer

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// newRegex returns the pattern of a regular expression in Oniguruma's syntax for Ruby, which the
// reference uses. Published patterns have matchers of their own. Other patterns must be in the part of
// the syntax that Go's regexp expresses exactly.
func newRegex(text string) (pattern, error) {
	if p, ok := published[text]; ok {
		return p, nil
	}
	return translated(text)
}

// translated returns a pattern that Go's regexp finds.
func translated(text string) (pattern, error) {
	head, blanks := strings.CutSuffix(text, `|\s+(?!\S)|\s+`)
	t := translator{rest: head}
	if err := t.translate(); err != nil {
		return nil, err
	}
	tree, err := syntax.Parse(t.out.String(), syntax.Perl)
	if err != nil {
		return nil, err
	}
	if empty(tree) || emptyLoop(tree) {
		return nil, fmt.Errorf("a match or a repetition may be empty")
	}
	compiled, err := regexp.Compile("(?:" + t.out.String() + ")")
	if err != nil {
		return nil, err
	}
	if !blanks {
		return regex{compiled}, nil
	}
	compiled, err = regexp.Compile("(?:" + t.out.String() + ")|([" + spaces + "]+)")
	return blankRegex{compiled}, err
}

// empty reports whether a regular expression without assertions matches the empty text.
func empty(x *syntax.Regexp) bool {
	r, err := regexp.Compile("^(?:" + x.String() + ")$")
	return err != nil || r.MatchString("")
}

// emptyLoop reports whether a repeated part matches the empty text. Engines differ in such loops.
func emptyLoop(x *syntax.Regexp) bool {
	loop := x.Op == syntax.OpStar || x.Op == syntax.OpPlus || x.Op == syntax.OpRepeat || x.Op == syntax.OpQuest
	return loop && empty(x.Sub[0]) || slices.ContainsFunc(x.Sub, emptyLoop)
}

// regex is a pattern of Go's regexp.
type regex struct{ *regexp.Regexp }

func (p regex) find(text string, from int) (start, end int) {
	if x := p.FindStringIndex(text[from:]); x != nil {
		return from + x[0], from + x[1]
	}
	return -1, -1
}

// blankRegex is a pattern that ends in |\s+(?!\S)|\s+, here the first group.
type blankRegex struct{ *regexp.Regexp }

func (p blankRegex) find(text string, from int) (start, end int) {
	x := p.FindStringSubmatchIndex(text[from:])
	switch {
	case x == nil:
		return -1, -1
	case x[2] >= 0:
		return from + x[0], blanks(text, from+x[0], false)
	}
	return from + x[0], from + x[1]
}

// spaces are the characters of \s.
const spaces = `\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}`

// A translator turns a regular expression of Oniguruma into one of Go.
type translator struct {
	rest string
	out  strings.Builder
	// depth is the number of open groups. A quantifier may follow if atom is true.
	depth int
	atom  bool
}

func (t *translator) translate() error {
	if strings.Contains(t.rest, "&&") || !utf8.ValidString(t.rest) || len(t.rest) > 1000 {
		return fmt.Errorf("a pattern with && or of more than 1000 bytes")
	}
	for t.rest != "" {
		if err := t.next(); err != nil {
			return err
		}
	}
	return nil
}

// contractions is a group without regard to case, which several published patterns have. The long s is
// one of the cases of s.
const contractions, contractionsInGo = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`, `(?:'(?:[sS\x{17F}tTmMdD]|[rRvV][eE]|[lL][lL]))`

// next translates an element.
func (t *translator) next() error {
	c, n := utf8.DecodeRuneInString(t.rest)
	switch {
	case t.cut(contractions):
		t.put(contractionsInGo, true)
	case t.cut("(?:"), c == '(' && !strings.HasPrefix(t.rest, "(?") && t.cut("("):
		t.depth++
		t.put("(?:", false)
	case c == ')' && t.depth > 0:
		t.depth--
		t.take(n, true)
	case c == '|':
		t.take(n, false)
	case c == '.':
		t.take(n, true)
	case strings.ContainsRune("*+?{", c):
		return t.quantifier()
	case c == '[':
		return t.class()
	case c == '\\':
		s, err := t.escape(false)
		t.put(s, true)
		return err
	case strings.ContainsRune(`^$()]}`, c):
		return fmt.Errorf("%q is not supported", c)
	default:
		t.rest = t.rest[n:]
		t.put(regexp.QuoteMeta(string(c)), true)
	}
	return nil
}

// cut drops a prefix of the rest.
func (t *translator) cut(prefix string) (ok bool) {
	t.rest, ok = strings.CutPrefix(t.rest, prefix)
	return ok
}

func (t *translator) put(s string, atom bool) {
	t.out.WriteString(s)
	t.atom = atom
}

func (t *translator) take(n int, atom bool) {
	t.put(t.rest[:n], atom)
	t.rest = t.rest[n:]
}

var quantifiers = regexp.MustCompile(`^(?:[*+?]\??|\{(\d{1,3})(?:,(\d{0,3}))?\})`)

// quantifier translates a quantifier. Possessive ones, and several in a row, are refused.
func (t *translator) quantifier() error {
	x := quantifiers.FindStringSubmatch(t.rest)
	if !t.atom || x == nil {
		return fmt.Errorf("a quantifier at %.20q is not supported", t.rest)
	}
	low, _ := strconv.Atoi(x[1])
	if high, err := strconv.Atoi(x[2]); err == nil && high < low {
		return fmt.Errorf("the quantifier %s is not supported", x[0])
	}
	t.take(len(x[0]), false)
	return nil
}

// escape returns an escape sequence in Go's syntax. Within brackets it stands for a part of a class.
func (t *translator) escape(brackets bool) (string, error) {
	c, n := utf8.DecodeRuneInString(t.rest[1:])
	s := t.rest[:1+n]
	t.rest = t.rest[1+n:]
	switch {
	case c == 's' && brackets:
		return spaces, nil
	case c == 's':
		return "[" + spaces + "]", nil
	case c == 'S' && !brackets:
		return "[^" + spaces + "]", nil
	case c == 'd':
		return `\p{Nd}`, nil
	case strings.ContainsRune("rnt", c), isSign(c):
		return s, nil
	case c == 'p' || c == 'P':
		name, after, ok := strings.Cut(strings.TrimPrefix(t.rest, "{"), "}")
		if ok && strings.HasPrefix(t.rest, "{") && isProperty(name) {
			t.rest = after
			return s + "{" + name + "}", nil
		}
	}
	return "", fmt.Errorf("the escape sequence %s is not supported", s)
}

// isProperty reports whether Go and Oniguruma give the name to the same property: a category, except
// the one that has unassigned code points, or a script.
func isProperty(name string) bool {
	_, category := unicode.Categories[name]
	_, script := unicode.Scripts[name]
	return category && len(name) <= 2 && !strings.HasPrefix(name, "C") && name != "LC" || script
}

// class translates a class in brackets. Classes within a class are refused.
func (t *translator) class() error {
	t.rest = t.rest[1:]
	t.put("[", true)
	if t.cut("^") {
		t.out.WriteByte('^')
	}
	for first := true; ; first = false {
		c, n := utf8.DecodeRuneInString(t.rest)
		switch {
		case n == 0 || c == '[' || c == ']' && first:
			return fmt.Errorf("a class in brackets is not supported at %.20q", t.rest)
		case c == ']':
			t.take(n, true)
			return nil
		case c == '\\':
			s, err := t.escape(true)
			if err != nil {
				return err
			}
			t.out.WriteString(s)
			if len(s) > 2 && strings.HasPrefix(t.rest, "-") && !strings.HasPrefix(t.rest, "-]") {
				return fmt.Errorf("a range at %.20q is not supported", t.rest)
			}
		case c == '-' && (first || strings.HasPrefix(t.rest, "-]")):
			t.rest = t.rest[1:]
			t.out.WriteString(`\-`)
		case c == '-': // a range
			t.take(n, true)
			if strings.HasPrefix(t.rest, `\`) && len(t.rest) > 1 && (isLetter(t.rest[1]) && !strings.Contains("rnt", t.rest[1:2])) {
				return fmt.Errorf("a range at %.20q is not supported", t.rest)
			}
		case isSign(c):
			t.out.WriteString(`\` + string(c))
			t.rest = t.rest[1:]
		default:
			t.take(n, true)
		}
	}
}

func isLetter(c byte) bool { return 'a' <= lowerASCII(c) && lowerASCII(c) <= 'z' }

// isSign reports whether c is a punctuation character or a symbol of ASCII.
func isSign(c rune) bool { return c < utf8.RuneSelf && (unicode.IsPunct(c) || unicode.IsSymbol(c)) }
