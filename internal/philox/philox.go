// Package philox is a random generator without a state: the words of a counter are a
// function of it and of a key, so that whatever is random of an element can be found
// again, by anyone and in any order.
package philox

import (
	"math"
	"math/bits"
)

// Words returns the four random words of a counter under a key: Philox4x32-10 of
// Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (2011).
func Words(counter [4]uint32, key [2]uint32) [4]uint32 {
	const (
		m0, m1 = 0xD2511F53, 0xCD9E8D57 // multipliers
		w0, w1 = 0x9E3779B9, 0xBB67AE85 // what a round adds to the key
	)
	c0, c1, c2, c3 := counter[0], counter[1], counter[2], counter[3]
	k0, k1 := key[0], key[1]
	for range 10 {
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

// Below returns the number below which a word drops what is dropped with probability p,
// from 0 up to but not 1.
func Below(p float32) uint32 {
	return uint32(min(math.Floor(float64(p)*(1<<32)+.5), 1<<32-1))
}
