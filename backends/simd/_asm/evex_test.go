package main

import (
	"testing"

	. "github.com/mmcloughlin/avo/reg"
)

// The GNU assembler produced the expected bytes. The fourth and fifth bits of a register's number
// have their own fields, so for each operand some cases use a register above 15.
func TestEVEX(t *testing.T) {
	for _, c := range []struct {
		prefix, opcode byte
		x, y, z        VecPhysical
		want           [6]byte
	}{
		{prefixF3, 0x52, Z0, Z0, Z0, [6]byte{0x62, 0xf2, 0x7e, 0x48, 0x52, 0xc0}},
		{prefixF3, 0x52, Z2, Z1, Z0, [6]byte{0x62, 0xf2, 0x76, 0x48, 0x52, 0xc2}},
		{prefixF3, 0x52, Z18, Z16, Z15, [6]byte{0x62, 0x32, 0x7e, 0x40, 0x52, 0xfa}},
		{prefixF3, 0x52, Z9, Z31, Z4, [6]byte{0x62, 0xd2, 0x06, 0x40, 0x52, 0xe1}},
		{prefixF3, 0x52, Z21, Z10, Z27, [6]byte{0x62, 0x22, 0x2e, 0x48, 0x52, 0xdd}},
		{prefixF2, 0x72, Z0, Z2, Z0, [6]byte{0x62, 0xf2, 0x6f, 0x48, 0x72, 0xc0}},
		{prefixF2, 0x72, Z30, Z13, Z24, [6]byte{0x62, 0x02, 0x17, 0x48, 0x72, 0xc6}},
	} {
		got := evex(c.prefix, c.opcode, c.x.PhysicalIndex(), c.y.PhysicalIndex(), c.z.PhysicalIndex())
		if got != c.want {
			t.Errorf("%#x %s, %s, %s is %x, want %x", c.opcode, c.x.Asm(), c.y.Asm(), c.z.Asm(), got, c.want)
		}
	}
}
