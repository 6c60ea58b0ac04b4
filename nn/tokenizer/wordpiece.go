package tokenizer

import (
	"math/bits"
	"strings"
	"unicode/utf8"
)

// wordPiece divides a word into the longest pieces of the vocabulary, from the left. Pieces within a
// word have a prefix, such as "##". If a part of the word matches no piece, the whole word becomes
// the unknown token.
type wordPiece struct {
	head, tail vocabulary // pieces at the beginning of a word; pieces within a word, without prefix
	prefix     string
	size       int
	unk        int32
	most       int // runes of a word; a longer word becomes the unknown token
}

// A vocabulary maps tokens to ids.
type vocabulary struct {
	ids     map[string]int32
	longest int      // bytes of the longest token
	lengths []uint64 // of tokens of at least 4 bytes, by the hash of these: bit min(n, 63) for n bytes
}

// newVocabulary returns an empty vocabulary for n tokens.
func newVocabulary(n int) vocabulary {
	return vocabulary{ids: make(map[string]int32, n), lengths: make([]uint64, 4<<bits.Len(uint(n)))}
}

func (v *vocabulary) add(token string, id int32) {
	v.ids[token] = id
	v.longest = max(v.longest, len(token))
	if len(token) >= 4 {
		*v.of(token) |= 1 << min(len(token), 63)
	}
}

// of returns the lengths for the hash of the first 4 bytes of a text.
func (v *vocabulary) of(text string) *uint64 {
	x := uint32(text[0]) | uint32(text[1])<<8 | uint32(text[2])<<16 | uint32(text[3])<<24
	return &v.lengths[x*0x9E3779B1>>8&uint32(len(v.lengths)-1)]
}

// find returns the bytes and the id of the longest token that begins a text, or 0 bytes.
func (v *vocabulary) find(text string) (n int, id int32) {
	n = min(len(text), v.longest)
	if n >= 4 {
		lengths := *v.of(text)
		for ; n >= 4; n-- {
			if n < 63 { // skips lengths that no such token has
				if n = bits.Len64(lengths&(1<<(n+1)-1)) - 1; n < 4 {
					break
				}
			}
			if id, ok := v.ids[text[:n]]; ok {
				return n, id
			}
		}
		n = 3
	}
	for ; n > 0; n-- {
		if id, ok := v.ids[text[:n]]; ok {
			return n, id
		}
	}
	return 0, 0
}

func newWordPieceModel(f *fields) model {
	var ids map[string]int32
	if v, ok := f.need("vocab"); ok {
		f.r.into(f.at("vocab"), v, &ids, "an object of ids")
	}
	unk, prefix, most := "[UNK]", "##", int32(100)
	for key, to := range map[string]*string{"unk_token": &unk, "continuing_subword_prefix": &prefix} {
		if _, ok := f.rest[key]; ok {
			*to = f.text(key)
		}
	}
	if _, ok := f.rest["max_input_chars_per_word"]; ok {
		most = f.whole("max_input_chars_per_word")
	}
	return newWordPiece(f, ids, unk, prefix, int(most))
}

func newWordPiece(f *fields, ids map[string]int32, unk, prefix string, most int) model {
	m := &wordPiece{prefix: prefix, head: newVocabulary(len(ids)), tail: newVocabulary(len(ids)), most: most}
	for token, id := range ids {
		if !validID(id) {
			f.fail("vocab", "token %.60q has the id %d", token, id)
			return nil
		}
		m.head.add(token, id)
		if token == "" {
			continue
		}
		if rest, ok := strings.CutPrefix(token, prefix); ok {
			m.tail.add(rest, id)
		}
		m.size = max(m.size, int(id)+1)
	}
	var ok bool
	if m.unk, ok = ids[unk]; !ok {
		f.fail("unk_token", "%.60q is not in the vocabulary of %d tokens", unk, len(ids))
	}
	return m
}

func (m *wordPiece) id(token string) (int32, bool) {
	id, ok := m.head.ids[token]
	return id, ok
}

func (m *wordPiece) count() int { return len(m.head.ids) }

func (m *wordPiece) len() int { return m.size }

func (m *wordPiece) encode(_ *scratch, dst []int32, word string) []int32 {
	if len(word) > m.most && utf8.RuneCountInString(word) > m.most {
		return append(dst, m.unk)
	}
	first := len(dst)
	for pieces := &m.head; word != ""; pieces = &m.tail {
		n, id := pieces.find(word)
		if n == 0 {
			return append(dst[:first], m.unk)
		}
		dst, word = append(dst, id), word[n:]
	}
	return dst
}
