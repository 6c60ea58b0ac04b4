// Package philox is a random generator without a state: the words of a counter are a
// function of it and of a key, so that whatever is random of an element can be found
// again, by anyone and in any order.
package philox

import "math/bits"

// Words returns the four random words of a counter under a key: Philox4x32-7 of
// Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011). Seven rounds are
// the fewest that pass the tests of BigCrush.
func Words(counter [4]uint32, key [2]uint32) [4]uint32 {
	const (
		m0, m1 = 0xD2511F53, 0xCD9E8D57 // multipliers
		w0, w1 = 0x9E3779B9, 0xBB67AE85 // what a round adds to the key
	)
	c0, c1, c2, c3 := counter[0], counter[1], counter[2], counter[3]
	k0, k1 := key[0], key[1]
	for range 7 {
		hi0, lo0 := bits.Mul32(m0, c0)
		hi1, lo1 := bits.Mul32(m1, c2)
		c0, c1, c2, c3 = hi1^c1^k0, lo1, hi0^c3^k1, lo0
		k0 += w0
		k1 += w1
	}
	return [4]uint32{c0, c1, c2, c3}
}

// Key returns the key of a seed.
func Key(seed uint64) [2]uint32 { return [2]uint32{uint32(seed), uint32(seed >> 32)} }

// Eight elements share a counter: the number of element e is 16 bits of word e%4, the
// lower half for the first four of the eight and the upper half for the others.

// Below returns the limit of dropping with probability p, from 0 up to but not 1: an
// element is dropped when its 16 bits, shifted to the top of a word, are below it. So p
// is rounded to a multiple of 2^-16.
func Below(p float32) uint32 { return limit(p) << 16 }

// Keep returns what kept elements are multiplied by, so that the mean stays.
func Keep(p float32) float32 { return float32(65536 / float64(65536-limit(p))) }

// Dropped reports whether element e of the eight with these words is dropped.
func Dropped(words [4]uint32, e int, below uint32) bool {
	w := words[e%4]
	if e%8 < 4 {
		w <<= 16
	}
	return w < below
}

// limit returns below how many of 65536 numbers an element is dropped.
func limit(p float32) uint32 { return min(uint32(float64(p)*65536+.5), 65535) }
