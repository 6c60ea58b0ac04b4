package tokenizer

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// An addedToken is found in a text before the text is split into words.
type addedToken struct {
	content                            string
	id                                 int32
	single, left, right, normal, extra bool // single_word, lstrip, rstrip, normalized, special
}

// An extent is a part of a text: an added token, or text between added tokens, whose id is -1.
type extent struct {
	from, to int
	id       int32
}

// A matcher finds added tokens. From the left, the longest token that begins at a byte matches.
type matcher struct {
	tokens []addedToken
	nodes  []node
	edges  []edge
	begins [256]bool
	only   int // the byte that begins every token, or -1
}

// A node of the matcher's trie has the edges edges[from:to].
type node struct {
	from, to int32
	token    int32 // index of the token that ends here, or -1
}

type edge struct {
	b  byte
	to int32
}

// newMatcher returns a matcher of tokens by their texts, which are not empty and differ.
func newMatcher(tokens []addedToken, texts []string) *matcher {
	m := &matcher{tokens: tokens, only: -1}
	order := make([]int, len(texts))
	for i := range order {
		order[i] = i
		m.begins[texts[i][0]] = true
		m.only = int(texts[i][0])
	}
	for b, begins := range m.begins {
		if begins && b != m.only {
			m.only = -1
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(texts[a], texts[b]) })
	m.build(texts, order)
	return m
}

// build makes the trie of sorted texts, level by level.
func (m *matcher) build(texts []string, order []int) {
	type group struct{ from, to, depth int } // order[from:to] share depth bytes
	groups := []group{{0, len(order), 0}}
	for n := 0; n < len(groups); n++ {
		g, x := groups[n], node{from: int32(len(m.edges)), token: -1}
		for g.from < g.to && len(texts[order[g.from]]) == g.depth {
			x.token = int32(order[g.from])
			g.from++
		}
		for i := g.from; i < g.to; {
			b, from := texts[order[i]][g.depth], i
			for i < g.to && texts[order[i]][g.depth] == b {
				i++
			}
			m.edges = append(m.edges, edge{b, int32(len(groups))})
			groups = append(groups, group{from, i, g.depth + 1})
		}
		x.to = int32(len(m.edges))
		m.nodes = append(m.nodes, x)
	}
}

// next returns the first match at or after a byte of text. The token is -1 if there is none.
func (m *matcher) next(text string, at int) (start, end, token int) {
	for ; ; at++ {
		if m.only >= 0 {
			i := strings.IndexByte(text[at:], byte(m.only))
			if i < 0 {
				return 0, 0, -1
			}
			at += i
		} else {
			for at < len(text) && !m.begins[text[at]] {
				at++
			}
			if at >= len(text) {
				return 0, 0, -1
			}
		}
		if end, token := m.longest(text, at); token >= 0 {
			return at, end, token
		}
	}
}

// longest returns the longest token that begins at a byte of text.
func (m *matcher) longest(text string, at int) (end, token int) {
	token = -1
	n := m.nodes[0]
	for i := at; i < len(text); i++ {
		edges, b := m.edges[n.from:n.to], text[i]
		j, ok := 0, false
		if len(edges) <= 4 {
			for j < len(edges) && edges[j].b < b {
				j++
			}
			ok = j < len(edges) && edges[j].b == b
		} else {
			j, ok = slices.BinarySearchFunc(edges, b, func(e edge, b byte) int { return int(e.b) - int(b) })
		}
		if !ok {
			break
		}
		if n = m.nodes[edges[j].to]; n.token >= 0 {
			end, token = i+1, int(n.token)
		}
	}
	return end, token
}

// split appends the added tokens of text, and the text between them. As in Hugging Face's
// tokenizers, a match that is not a single word hides other matches in it, and white space that a
// token strips may be stripped by two tokens.
func (m *matcher) split(dst []extent, text string) []extent {
	last, spaces := 0, 0
	if len(m.tokens) > 0 {
		for at := 0; ; {
			start, end, i := m.next(text, at)
			if i < 0 {
				break
			}
			at = end
			t := &m.tokens[i]
			if t.single && (endsInWord(text[:start]) || beginsWithWord(text[end:])) {
				continue
			}
			if t.left {
				start = max(last, min(last, start)+len(strings.TrimRightFunc(text[min(last, start):start], isSpace)))
			}
			if t.right {
				if spaces < end { // else text[end:spaces] is white space
					spaces = len(text) - len(strings.TrimLeftFunc(text[end:], isSpace))
				}
				end = spaces
			}
			if last < start {
				dst = append(dst, extent{last, start, -1})
			}
			if start < end {
				dst = append(dst, extent{start, end, t.id})
			}
			last = end
		}
	}
	if last != len(text) {
		dst = append(dst, extent{last, len(text), -1})
	}
	return dst
}

func endsInWord(text string) bool {
	r, n := utf8.DecodeLastRuneInString(text)
	return n > 0 && isWord(r)
}

func beginsWithWord(text string) bool {
	r, n := utf8.DecodeRuneInString(text)
	return n > 0 && isWord(r)
}
