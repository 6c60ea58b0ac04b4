package tokenizer

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"strings"
	"unicode/utf8"
)

// A charsmap is SentencePiece's normalizer. It replaces characters and short grapheme clusters by the
// rules of a double-array trie.
type charsmap struct {
	trie  []uint32
	texts string    // replacements, each ended by a zero byte
	keeps [128]bool // ASCII characters that have no rule
}

// newCharsmap decodes precompiled_charsmap: the length of the trie in bytes, the trie and the
// replacements, in base64.
func newCharsmap(f *fields) normalizer {
	m, err := decodeCharsmap(f.text("precompiled_charsmap"))
	if err != nil {
		f.fail("precompiled_charsmap", "%v", err)
	}
	return m
}

func decodeCharsmap(encoded string) (*charsmap, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil {
		return nil, err
	}
	if len(b) < 4 {
		return nil, errors.New("no length of the trie")
	}
	size := uint64(binary.LittleEndian.Uint32(b)) / 4
	if b = b[4:]; size == 0 || size > uint64(len(b))/4 {
		return nil, errors.New("the length of the trie exceeds the data")
	}
	m := &charsmap{trie: make([]uint32, size), texts: string(b[4*size:])}
	if !utf8.ValidString(m.texts) {
		return nil, errors.New("the replacements are not valid UTF-8")
	}
	for i := range m.trie {
		m.trie[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	for c := range m.keeps {
		_, ok := m.rule(string(rune(c)))
		m.keeps[c] = !ok
	}
	return m, nil
}

// unit returns an element of the trie. Beyond its end all elements are 0.
func (m *charsmap) unit(at uint32) uint32 {
	if uint64(at) < uint64(len(m.trie)) {
		return m.trie[at]
	}
	return 0
}

// rule returns the replacement of the shortest key that text begins with. The reference takes the
// shortest, too, and drops the rest of text.
func (m *charsmap) rule(text string) (string, bool) {
	at := below(m.trie[0])
	for i := 0; i < len(text) && text[i] != 0; i++ {
		at ^= uint32(text[i])
		unit := m.unit(at)
		if unit&(1<<31|0xFF) != uint32(text[i]) {
			break
		}
		at ^= below(unit)
		if unit>>8&1 == 0 {
			continue
		}
		from := int(m.unit(at) & (1<<31 - 1))
		if from > len(m.texts) || from < len(m.texts) && !utf8.RuneStart(m.texts[from]) {
			break
		}
		text, _, _ := strings.Cut(m.texts[from:], "\x00")
		return text, true
	}
	return "", false
}

// below returns the offset of a trie's element to its children.
func below(unit uint32) uint32 { return unit >> 10 << (unit & (1 << 9) >> 6) }

// normalize replaces the grapheme clusters of fewer than 6 bytes that have a rule, else the
// characters that have one.
func (m *charsmap) normalize(_ *scratch, dst []byte, text string) []byte {
	for i := 0; i < len(text); {
		if c := text[i]; c < utf8.RuneSelf && m.keeps[c] && (i+1 == len(text) || text[i+1] < utf8.RuneSelf && text[i+1] != '\n') {
			dst = append(dst, c)
			i++
			continue
		}
		n := grapheme(text[i:])
		if n < 6 {
			if new, ok := m.rule(text[i : i+n]); ok {
				dst = append(dst, new...)
				i += n
				continue
			}
		}
		for end := i + n; i < end; {
			_, n := utf8.DecodeRuneInString(text[i:])
			if new, ok := m.rule(text[i : i+n]); ok {
				dst = append(dst, new...)
			} else {
				dst = append(dst, text[i:i+n]...)
			}
			i += n
		}
	}
	return dst
}
