// Package half converts between float32 and the two 16-bit storage formats, IEEE binary16 (f16) and
// bfloat16 (bf16). Widening is exact. Narrowing rounds to nearest, ties to even. Narrowing turns
// numbers that are too large into infinity, and NaN into NaN.
package half

import "math"

// FromF16 returns the value of the binary16 bits h.
func FromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10)&0x1f, uint32(h)&0x3ff
	switch exp {
	case 0x1f: // infinity or NaN
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	case 0: // zero or subnormal: frac counts units of 2^-24
		return math.Float32frombits(math.Float32bits(float32(frac)*0x1p-24) | sign)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// ToF16 returns the binary16 bits nearest to x.
func ToF16(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	b &^= 1 << 31
	switch {
	case b > 0xff<<23:
		return sign | 0x7e00 | uint16(b>>13)&0x3ff // a quiet NaN, with the upper bits of its payload
	case b >= 0x47800000: // 2^16 and above
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: subnormal; the addition of 0.5 rounds to units of 2^-24
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
	}
	b += 0xfff + b>>13&1 // round to nearest even; a carry may reach infinity
	return sign | uint16(b>>13-(127-15)<<10)
}

// FromBF16 returns the value of the bfloat16 bits h.
func FromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// ToBF16 returns the bfloat16 bits nearest to x.
func ToBF16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&^(1<<31) > 0xff<<23 {
		return uint16(b>>16) | 0x40 // a quiet NaN: without this bit, a payload in the lower half only would leave infinity
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
