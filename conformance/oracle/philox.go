package oracle

import "math"

// Kept reports whether dropout with probability p keeps the weight of key j of row i of query head
// h of sequence b. It compares a 16-bit random number with p times 2^16. Eight keys share the four
// random words of a counter. The first four of these keys use the lower halves of the words.
func Kept(p float32, seed uint64, b, h, i, j int) bool {
	word := philox([2]uint32{uint32(seed), uint32(seed >> 32)}, [4]uint32{uint32(j / 8), uint32(i), uint32(h), uint32(b)})[j%4]
	return word>>(j%8/4*16)&(1<<16-1) >= dropped(p)
}

// Keep returns the factor of kept weights: 65536 divided by the number of 16-bit numbers that keep
// a weight. It differs slightly from 1/(1-p).
func Keep(p float32) float64 { return 65536 / float64(65536-dropped(p)) }

// dropped returns the number of 16-bit numbers that drop a weight with probability p.
func dropped(p float32) uint32 { return min(uint32(math.Floor(float64(p)*(1<<16)+.5)), 1<<16-1) }

// philox is Philox4x32-7 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3,
// 2011, section 3.3).
func philox(key [2]uint32, x [4]uint32) [4]uint32 {
	for range 7 {
		a, b := uint64(0xD2511F53)*uint64(x[0]), uint64(0xCD9E8D57)*uint64(x[2])
		x = [4]uint32{uint32(b>>32) ^ x[1] ^ key[0], uint32(b), uint32(a>>32) ^ x[3] ^ key[1], uint32(a)}
		key[0] += 0x9E3779B9
		key[1] += 0xBB67AE85
	}
	return x
}
