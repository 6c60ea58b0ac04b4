package tokenizer

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"unicode/utf8"
)

// A unigram is SentencePiece's Unigram model. It divides a word into the tokens with the greatest sum
// of scores.
type unigram struct {
	vocab
	trie   trie
	scores []float64
	bytes  *[256]int32 // ids of the tokens of bytes; nil: no byte fallback
	unk    int32
	worst  float64 // score of an unknown character
}

// unknownPenalty is the difference between the lowest score and the score of an unknown character.
const unknownPenalty = 10

// newUnigram reads a Unigram model. Ids are indices in its vocabulary. The last of equal tokens
// counts.
func newUnigram(f *fields) model {
	var list []scored
	if v, ok := f.need("vocab"); ok {
		f.into("vocab", v, &list, "a list of tokens with scores")
	}
	m := &unigram{vocab: vocab{make(map[string]int32, len(list)), len(list)}, worst: math.Inf(1)}
	for i, x := range list {
		m.ids[x.token] = int32(i)
		m.scores = append(m.scores, x.score)
		m.worst = min(m.worst, x.score)
	}
	m.worst -= unknownPenalty
	if m.unk = f.whole("unk_id"); int(m.unk) >= len(list) && f.Err == nil {
		f.fail("unk_id", "%d is no index of %d tokens", m.unk, len(list))
	}
	if f.flag("byte_fallback", false) {
		m.bytes = m.vocab.bytes()
	}
	m.trie = newTrie(m.ids)
	return m
}

// A scored is a token with its score.
type scored struct {
	token string
	score float64
}

// UnmarshalJSON reads a list of a token and its score.
func (s *scored) UnmarshalJSON(b []byte) error {
	list := []any{&s.token, &s.score}
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	if len(list) != 2 || list[0] == nil || list[1] == nil {
		return errors.New("not a token with its score")
	}
	return nil
}

// A step is the last token of the best tokens up to a byte of a word. from is -1 if no tokens end at
// the byte.
type step struct {
	score    float64
	from, id int32
}

func (m *unigram) encode(s *scratch, dst []int32, word string) []int32 {
	m.search(s, word)
	first := len(dst)
	for end := int32(len(word)); end > 0; {
		x := s.steps[end]
		from := x.from
		if x.id == m.unk {
			for from > 0 && s.steps[from].id == m.unk {
				from = s.steps[from].from
			}
			dst = m.unknown(dst, word[from:end])
		} else {
			dst = append(dst, x.id)
		}
		end = from
	}
	slices.Reverse(dst[first:])
	return dst
}

// unknown appends the tokens of adjacent unknown characters in reverse order.
func (m *unigram) unknown(dst []int32, text string) []int32 {
	if id, ok := m.ids[text]; ok {
		return append(dst, id)
	}
	first := len(dst)
	if m.bytes != nil {
		var ok bool
		if dst, ok = appendBytes(dst, m.bytes, text); ok {
			slices.Reverse(dst[first:])
			return dst
		}
	}
	return append(dst, m.unk)
}

// search finds the best tokens up to each byte of a word.
func (m *unigram) search(s *scratch, word string) {
	s.steps = slices.Grow(s.steps[:0], len(word)+1)[:len(word)+1]
	x := s.steps
	for i := range x {
		x[i] = step{0, -1, 0}
	}
	for i := 0; i < len(word); {
		_, n := utf8.DecodeRuneInString(word[i:])
		single := false // a token is the character
		for at, end := int32(0), i; end < len(word); {
			if at = m.trie.child(at, word[end]); at < 0 {
				break
			}
			end++
			if id := m.trie.ids[at]; id >= 0 {
				x[end].take(x[i].score+m.scores[id], i, id)
				single = single || end == i+n
			}
		}
		if !single {
			x[i+n].take(x[i].score+m.worst, i, m.unk)
		}
		i += n
	}
}

// take sets a step if the score is better.
func (x *step) take(score float64, from int, id int32) {
	if x.from < 0 || score > x.score {
		*x = step{score, int32(from), id}
	}
}

// A trie finds the tokens that begin a text. Its nodes are numbered level by level, from the root 0.
// The children of node i are first[i] to first[i+1], in the order of their bytes.
type trie struct {
	first  []int32
	labels []byte  // the byte that leads to a node
	ids    []int32 // of the token that ends at a node, or -1
}

func newTrie(ids map[string]int32) trie {
	keys := make([]string, 0, len(ids))
	for key := range ids {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	type group struct{ from, to, depth int } // keys[from:to] have the first depth bytes in common
	groups, t := []group{{0, len(keys), 0}}, trie{labels: []byte{0}}
	for i := 0; i < len(groups); i++ {
		g, id := groups[i], int32(-1)
		if g.from < g.to && len(keys[g.from]) == g.depth {
			id = ids[keys[g.from]]
			g.from++
		}
		t.first, t.ids = append(t.first, int32(len(groups))), append(t.ids, id)
		for g.from < g.to {
			end, label := g.from, keys[g.from][g.depth]
			for end < g.to && keys[end][g.depth] == label {
				end++
			}
			groups, t.labels = append(groups, group{g.from, end, g.depth + 1}), append(t.labels, label)
			g.from = end
		}
	}
	t.first = append(t.first, int32(len(groups)))
	return t
}

// child returns the child of a node, or -1.
func (t *trie) child(node int32, label byte) int32 {
	lo, end := t.first[node], t.first[node+1]
	for hi := end; lo < hi; {
		if mid := (lo + hi) / 2; t.labels[mid] < label {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < end && t.labels[lo] == label {
		return lo
	}
	return -1
}
