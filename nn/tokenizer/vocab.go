package tokenizer

import "fmt"

// A vocab has the ids of tokens.
type vocab struct {
	ids  map[string]int32
	size int // 1 + the greatest id
}

// newVocab reads a vocabulary, an object of ids.
func newVocab(f *fields, key string) (v vocab) {
	if value, ok := f.need(key); ok {
		f.into(key, value, &v.ids, "an object of ids")
	}
	for token, id := range v.ids {
		if !validID(id) {
			f.fail(key, "token %.60q has the id %d", token, id)
			break
		}
		v.size = max(v.size, int(id)+1)
	}
	return v
}

func (v *vocab) id(token string) (int32, bool) {
	id, ok := v.ids[token]
	return id, ok
}

func (v *vocab) count() int { return len(v.ids) }

func (v *vocab) len() int { return v.size }

// bytes returns the ids of the tokens <0x00> to <0xFF>, or -1.
func (v *vocab) bytes() *[256]int32 {
	var b [256]int32
	for c := range b {
		id, ok := v.ids[fmt.Sprintf("<0x%02X>", c)]
		if b[c] = id; !ok {
			b[c] = -1
		}
	}
	return &b
}

// appendBytes appends the tokens of the bytes of a text to dst. It returns false if b lacks one.
func appendBytes[T string | []byte](dst []int32, b *[256]int32, text T) ([]int32, bool) {
	for i := range len(text) {
		if b[text[i]] < 0 {
			return dst[:len(dst)-i], false
		}
		dst = append(dst, b[text[i]])
	}
	return dst, true
}
