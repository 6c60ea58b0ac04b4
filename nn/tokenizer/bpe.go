package tokenizer

import (
	"bytes"
	"strings"
	"unicode/utf8"
)

// A bpe is the model of byte pair encoding. It begins with the characters of a word and joins, again
// and again, the adjacent pair of tokens of the lowest rank.
type bpe struct {
	vocab
	merges         map[pair]merge
	prefix, suffix string       // of tokens that continue, and that end a word
	low            [0x200]int32 // ids of the tokens of one character, or -1
	bytes          *[256]int32  // ids of the tokens of bytes; nil: no byte fallback
	unk            int32        // id of the unknown token, or -1
	fuse           bool         // adjacent unknown characters are one token
	whole          bool         // a word of the vocabulary is a token
}

// A pair is two adjacent tokens.
type pair struct{ left, right int32 }

// A merge makes one token of a pair.
type merge struct{ rank, id int32 }

// newBPE reads a BPE model.
func newBPE(f *fields) model {
	b := &bpe{vocab: newVocab(f, "vocab"), unk: -1, fuse: f.flag("fuse_unk", false), whole: f.flag("ignore_merges", false)}
	if f.flag("byte_fallback", false) {
		b.bytes = b.vocab.bytes()
	}
	if v, ok := f.take("dropout"); ok {
		var p float64
		if f.into("dropout", v, &p, "a number") && p != 0 {
			f.fail("dropout", "%v is not supported", p)
		}
	}
	b.prefix, _ = f.maybe("continuing_subword_prefix")
	b.suffix, _ = f.maybe("end_of_word_suffix")
	if unk, ok := f.maybe("unk_token"); ok {
		if b.unk, ok = b.ids[unk]; !ok {
			f.fail("unk_token", "%.60q is not in vocab", unk)
		}
	}
	for r := range b.low {
		id, ok := b.ids[string(rune(r))]
		if b.low[r] = id; !ok {
			b.low[r] = -1
		}
	}
	b.read(f, mergesOf(f))
	return b
}

// maybe returns a string that may be missing.
func (f *fields) maybe(key string) (s string, ok bool) {
	v, ok := f.take(key)
	return s, ok && f.into(key, v, &s, "a string")
}

// mergesOf reads merges: pairs of tokens, or texts with a space between two tokens.
func mergesOf(f *fields) (list [][]string) {
	v, ok := f.need("merges")
	if !ok {
		return nil
	}
	if first := bytes.TrimLeft(v, "[ \t\r\n"); len(first) == 0 || first[0] != '"' || bytes.Count(v[:len(v)-len(first)], []byte("[")) > 1 {
		f.into("merges", v, &list, "a list of pairs of tokens")
		return list
	}
	var lines []string
	f.into("merges", v, &lines, "a list of pairs of tokens")
	for _, line := range lines {
		if !strings.HasPrefix(line, "#version") {
			list = append(list, strings.Split(line, " "))
		}
	}
	return list
}

// read sets the merges. A merge's rank is its index. The last merge of a pair counts.
func (b *bpe) read(f *fields, list [][]string) {
	b.merges = make(map[pair]merge, len(list))
	var key []byte
	for rank, m := range list {
		if len(m) != 2 {
			f.fail("merges", "merge %d has %d tokens", rank, len(m))
			return
		}
		left, ok := b.ids[m[0]]
		right, ok2 := b.ids[m[1]]
		key = append(append(key[:0], m[0]...), m[1][min(len(b.prefix), len(m[1])):]...)
		id, ok3 := b.ids[string(key)]
		if !ok || !ok2 || !ok3 {
			f.fail("merges", "a token of merge %d, %.60q and %.60q, is not in vocab", rank, m[0], m[1])
			return
		}
		b.merges[pair{left, right}] = merge{int32(rank), id}
	}
}

// merging is memory for the encoding of a word.
type merging struct {
	symbols []symbol
	queue   []candidate // a heap
	ids     []int32     // of the characters
	key     []byte      // a character with its prefix and suffix
}

// A symbol is a token of a word while its pairs are joined. The id -1 marks a symbol that was joined
// to its left neighbor.
type symbol struct{ id, before, after int32 }

// A candidate is a pair that can be joined to the token id. The key is the pair's rank in its upper
// half and the index of the left symbol in its lower half.
type candidate struct {
	key uint64
	id  int32
}

func (b *bpe) encode(s *scratch, dst []int32, word string) []int32 {
	if b.whole {
		if id, ok := b.ids[word]; ok {
			return append(dst, id)
		}
	}
	m := &s.merging
	m.ids = b.characters(m, m.ids[:0], word)
	m.symbols, m.queue = m.symbols[:0], m.queue[:0]
	for i, id := range m.ids {
		m.symbols = append(m.symbols, symbol{id, int32(i - 1), int32(i + 1)})
	}
	b.join(m)
	for _, x := range m.symbols {
		if x.id >= 0 {
			dst = append(dst, x.id)
		}
	}
	return dst
}

// characters appends the tokens of all characters. An unknown character becomes its bytes, else the
// unknown token, else nothing. As in the reference, an unknown token that waits to be fused comes
// after the bytes of the characters that follow it.
func (b *bpe) characters(m *merging, ids []int32, word string) []int32 {
	waits := false
	for i := 0; i < len(word); {
		r, n := utf8.DecodeRuneInString(word[i:])
		id := b.character(m, word, i, i+n, r)
		i += n
		known := id >= 0
		if !known && b.bytes != nil {
			var ok bool
			if ids, ok = appendBytes(ids, b.bytes, m.key); ok {
				continue
			}
		}
		if waits && (known || !b.fuse) {
			ids, waits = append(ids, b.unk), false
		}
		if known {
			ids = append(ids, id)
		} else {
			waits = b.unk >= 0
		}
	}
	if waits {
		ids = append(ids, b.unk)
	}
	return ids
}

// character returns the id of the character r, which is word[from:to], or -1. If it returns -1, m.key
// is the character with its prefix and suffix.
func (b *bpe) character(m *merging, word string, from, to int, r rune) int32 {
	begins, ends := from == 0 || b.prefix == "", to == len(word) && b.suffix != ""
	if begins && !ends && int(r) < len(b.low) && b.low[r] >= 0 {
		return b.low[r]
	}
	m.key = m.key[:0]
	if !begins {
		m.key = append(m.key, b.prefix...)
	}
	m.key = append(m.key, word[from:to]...)
	if ends {
		m.key = append(m.key, b.suffix...)
	}
	if id, ok := b.ids[string(m.key)]; ok {
		return id
	}
	return -1
}

// join joins pairs, the lowest rank first and then from the left. A heap holds the pairs, so that the
// time is O(n log n) for n characters.
func (b *bpe) join(m *merging) {
	x := m.symbols
	for i := 0; i+1 < len(x); i++ {
		b.push(m, int32(i), int32(i+1))
	}
	for len(m.queue) > 0 {
		top := m.pop()
		at := int32(uint32(top.key))
		next := x[at].after
		if x[at].id < 0 || int(next) >= len(x) {
			continue
		}
		// The pair may have changed. As in the reference, another pair of the same token counts.
		if now, ok := b.merges[pair{x[at].id, x[next].id}]; !ok || now.id != top.id {
			continue
		}
		after := x[next].after
		x[at].id, x[at].after, x[next].id = top.id, after, -1
		if before := x[at].before; before >= 0 {
			b.push(m, before, at)
		}
		if int(after) < len(x) {
			x[after].before = at
			b.push(m, at, after)
		}
	}
}

// push adds the pair of two symbols to the queue if it has a merge.
func (b *bpe) push(m *merging, left, right int32) {
	found, ok := b.merges[pair{m.symbols[left].id, m.symbols[right].id}]
	if !ok {
		return
	}
	x := candidate{uint64(found.rank)<<32 | uint64(left), found.id}
	q := append(m.queue, x)
	at := len(q) - 1
	for at > 0 && q[(at-1)/2].key > x.key {
		q[at] = q[(at-1)/2]
		at = (at - 1) / 2
	}
	q[at], m.queue = x, q
}

// pop removes the first candidate from the queue.
func (m *merging) pop() candidate {
	top, last := m.queue[0], m.queue[len(m.queue)-1]
	q, at := m.queue[:len(m.queue)-1], 0
	for child := 1; child < len(q); child = 2*at + 1 {
		if child+1 < len(q) && q[child+1].key < q[child].key {
			child++
		}
		if q[child].key >= last.key {
			break
		}
		q[at], at = q[child], child
	}
	if len(q) > 0 {
		q[at] = last
	}
	m.queue = q
	return top
}
