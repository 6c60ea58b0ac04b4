// Package philox is a random generator without state: its words are a function of a counter and a
// key. So the random bits of elements can be computed in any order, and again later.
package philox

import "math/bits"

// Words returns the four random words of a counter under a key. The function is Philox4x32-7 of
// Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011). Seven rounds are the fewest
// that pass BigCrush.
func Words(counter [4]uint32, key [2]uint32) [4]uint32 {
	const (
		m0, m1 = 0xD2511F53, 0xCD9E8D57 // multipliers
		w0, w1 = 0x9E3779B9, 0xBB67AE85 // key increments of a round
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

// Eight elements share a counter. Element e, with e from 0 to 7, gets 16 bits of word e%4. Elements
// 0 to 3 get the lower half of the word, elements 4 to 7 the upper half.

// Below returns the limit for dropping with probability p, 0 <= p < 1. An element is dropped if its
// 16 bits, shifted to the top of a word, are below the limit. So p is rounded to a multiple of
// 2^-16.
func Below(p float32) uint32 { return limit(p) << 16 }

// Keep returns the factor that multiplies kept elements, so that dropping preserves the mean.
func Keep(p float32) float32 { return float32(65536 / float64(65536-limit(p))) }

// Dropped reports whether an element is dropped. words are the random words of the element's
// counter. e%8 is the element's number among the eight elements of this counter. below is the limit
// from Below.
func Dropped(words [4]uint32, e int, below uint32) bool {
	w := words[e%4]
	if e%8 < 4 {
		w <<= 16
	}
	return w < below
}

// limit returns how many of the 65536 values of 16 bits drop an element.
func limit(p float32) uint32 { return min(uint32(float64(p)*65536+.5), 65535) }
