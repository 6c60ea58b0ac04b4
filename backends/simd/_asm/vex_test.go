package main

import (
	"slices"
	"testing"

	. "github.com/mmcloughlin/avo/reg"
)

// The GNU assembler produced the expected bytes. {disp32} in its input requested 32-bit offsets.
func TestVEX(t *testing.T) {
	for _, c := range []struct {
		name string
		got  []byte
		want []byte
	}{
		{"tilerelease", vex(0, 0x49, 0, tiles(0, 0)), []byte{0xc4, 0xe2, 0x78, 0x49, 0xc0}},
		{"tilezero %tmm5", vex(prefixF2, 0x49, 0, tiles(5, 0)), []byte{0xc4, 0xe2, 0x7b, 0x49, 0xe8}},
		{"tileloadd 64(%r11,%r12,1), %tmm4", vex(prefixF2, 0x4b, 0, rowsAt(4, 64, R11, R12)),
			[]byte{0xc4, 0x82, 0x7b, 0x4b, 0xa4, 0x23, 0x40, 0, 0, 0}},
		{"tileloadd 0(%r8,%rcx,1), %tmm6", vex(prefixF2, 0x4b, 0, rowsAt(6, 0, R8, RCX)),
			[]byte{0xc4, 0xc2, 0x7b, 0x4b, 0xb4, 0x08, 0, 0, 0, 0}},
		{"tilestored %tmm3, 2112(%rdi,%r12,1)", vex(prefixF3, 0x4b, 0, rowsAt(3, 2112, RDI, R12)),
			[]byte{0xc4, 0xa2, 0x7a, 0x4b, 0x9c, 0x27, 0x40, 0x08, 0, 0}},
		{"tdpbf16ps %tmm4, %tmm6, %tmm0", vex(prefixF3, 0x5c, 4, tiles(0, 6)), []byte{0xc4, 0xe2, 0x5a, 0x5c, 0xc6}},
		{"tdpbusd %tmm5, %tmm7, %tmm3", vex(prefix66, 0x5e, 5, tiles(3, 7)), []byte{0xc4, 0xe2, 0x51, 0x5e, 0xdf}},
		{"{vex} vpdpbusd %ymm1, %ymm2, %ymm3", vexYMM(prefix66, 0x50, 1, 2, 3), []byte{0xc4, 0xe2, 0x6d, 0x50, 0xd9}},
		{"{vex} vpdpbusd %ymm13, %ymm14, %ymm11", vexYMM(prefix66, 0x50, 13, 14, 11), []byte{0xc4, 0x42, 0x0d, 0x50, 0xdd}},
		{"tdpbf16ps %tmm5, %tmm7, %tmm3", vex(prefixF3, 0x5c, 5, tiles(3, 7)), []byte{0xc4, 0xe2, 0x52, 0x5c, 0xdf}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%s is %x, want %x", c.name, c.got, c.want)
		}
	}
}
