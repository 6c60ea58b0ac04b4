package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// wordPiece divides a word into the longest pieces of the vocabulary, from the left. Pieces within a
// word have a prefix, such as "##". If a part of the word matches no piece, the whole word becomes
// the unknown token.
type wordPiece struct {
	ids        map[string]int32
	head, tail pieces // at the beginning of a word; within a word, without prefix
	prefix     string
	size       int
	unk        int32
	most       int // runes of a word; a longer word becomes the unknown token
}

func newWordPieceModel(f *fields) model {
	var ids map[string]int32
	if v, ok := f.need("vocab"); ok {
		f.into("vocab", v, &ids, "an object of ids")
	}
	unk, prefix, most := "[UNK]", "##", int32(100)
	for key, to := range map[string]*string{"unk_token": &unk, "continuing_subword_prefix": &prefix} {
		if f.given(key) {
			*to = f.text(key)
		}
	}
	if f.given("max_input_chars_per_word") {
		most = f.whole("max_input_chars_per_word")
	}
	return newWordPiece(f, ids, unk, prefix, int(most))
}

func newWordPiece(f *fields, ids map[string]int32, unk, prefix string, most int) model {
	m := &wordPiece{ids: ids, prefix: prefix, most: most}
	var lists [2][]string
	var numbers [2][]int32
	for token, id := range ids {
		if !validID(id) {
			f.fail("vocab", "token %.60q has the id %d", token, id)
			return nil
		}
		if token == "" {
			continue
		}
		m.size = max(m.size, int(id)+1)
		lists[0], numbers[0] = append(lists[0], token), append(numbers[0], id)
		if rest, ok := strings.CutPrefix(token, prefix); ok && rest != "" {
			lists[1], numbers[1] = append(lists[1], rest), append(numbers[1], id)
		}
	}
	m.head, m.tail = newPieces(lists[0], numbers[0]), newPieces(lists[1], numbers[1])
	var ok bool
	if m.unk, ok = ids[unk]; !ok {
		f.fail("unk_token", "%.60q is not in the vocabulary of %d tokens", unk, len(ids))
	}
	return m
}

func (m *wordPiece) id(token string) (int32, bool) {
	id, ok := m.ids[token]
	return id, ok
}

func (m *wordPiece) count() int { return len(m.ids) }

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
