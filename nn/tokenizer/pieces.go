package tokenizer

import (
	"math/bits"
	"math/rand/v2"
)

// pieces is a hash table of tokens that finds the longest token at the beginning of a text. A slot has
// the first 8 bytes of a token, so that most tokens are compared without reading their text.
type pieces struct {
	slots   []slot
	at      []uint32 // offset in all of a slot's token
	all     string   // the tokens
	longest int      // bytes of the longest token
	shift   int
	odd     uint64   // a random factor, so that no file has only collisions
	lengths []uint16 // of tokens of at least 4 bytes, by the hash of these: bit min(n, 15) for n bytes
}

// A slot is empty if n is 0.
type slot struct {
	key uint64 // the first 8 bytes, or fewer
	n   int32
	id  int32
}

// newPieces returns the table of tokens that are not empty and differ.
func newPieces(tokens []string, ids []int32) pieces {
	size := bits.Len(uint(len(tokens))) + 1
	p := pieces{slots: make([]slot, 1<<size), at: make([]uint32, 1<<size), shift: 64 - size, odd: rand.Uint64() | 1, lengths: make([]uint16, 1<<size)}
	var all []byte
	for i, t := range tokens {
		key := first8(t)
		s := p.hash(key, t)
		for p.slots[s].n != 0 {
			s = (s + 1) & (len(p.slots) - 1)
		}
		p.slots[s] = slot{key, int32(len(t)), ids[i]}
		p.at[s] = uint32(len(all))
		all = append(all, t...)
		p.longest = max(p.longest, len(t))
		if len(t) >= 4 {
			*p.of(key) |= 1 << min(len(t), 15)
		}
	}
	p.all = string(all)
	return p
}

// first8 returns the first 8 bytes of a text, followed by zeros if the text is shorter.
func first8(text string) uint64 {
	switch n := len(text); {
	case n >= 8:
		return first4(text) | first4(text[4:])<<32
	case n >= 4:
		return first4(text) | first4(text[n-4:])<<(8*(n-4)) // the bytes of both are equal
	case n > 0:
		return uint64(text[0]) | uint64(text[n/2])<<(8*(n/2)) | uint64(text[n-1])<<(8*(n-1))
	}
	return 0
}

// first4 returns the first 4 bytes of a text.
func first4(text string) uint64 {
	return uint64(text[0]) | uint64(text[1])<<8 | uint64(text[2])<<16 | uint64(text[3])<<24
}

// hash returns the first slot to search for a text, whose first bytes are key.
func (p *pieces) hash(key uint64, text string) int {
	h := (key ^ uint64(len(text))) * p.odd
	for len(text) > 8 {
		text = text[8:]
		h = (h ^ h>>29 ^ first8(text)) * p.odd
	}
	return int(h >> p.shift)
}

// of returns the lengths of tokens that begin with 4 bytes.
func (p *pieces) of(key uint64) *uint16 {
	return &p.lengths[(key&(1<<32-1)*p.odd)>>p.shift]
}

// get returns the id of a token, or -1. key has its first bytes.
func (p *pieces) get(key uint64, text string) int32 {
	for s := p.hash(key, text); ; s = (s + 1) & (len(p.slots) - 1) {
		x := &p.slots[s]
		if x.key == key && int(x.n) == len(text) && (len(text) <= 8 || p.all[p.at[s]:][:len(text)] == text) {
			return x.id
		}
		if x.n == 0 {
			return -1
		}
	}
}

// find returns the bytes and the id of the longest token that begins a text, or 0 bytes.
func (p *pieces) find(text string) (n int, id int32) {
	key := first8(text)
	if n = len(text); n <= p.longest {
		if id = p.get(key, text); id >= 0 {
			return n, id
		}
	}
	if n = min(n-1, p.longest); n >= 4 {
		lengths := uint(*p.of(key))
		for ; n >= 4; n-- {
			if n < 15 { // skips lengths that no such token has
				if n = bits.Len(lengths&(1<<(n+1)-1)) - 1; n < 4 {
					break
				}
			}
			k := key
			if n < 8 {
				k &= 1<<(8*n) - 1
			}
			if id = p.get(k, text[:n]); id >= 0 {
				return n, id
			}
		}
		n = min(3, len(text)-1)
	}
	for ; n > 0; n-- {
		if id = p.get(key&(1<<(8*n)-1), text[:n]); id >= 0 {
			return n, id
		}
	}
	return 0, -1
}
