package main

import (
	"encoding/binary"
	"fmt"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Neither avo nor Go's assembler has the instructions of AVX512-BF16, so this file writes them as
// data. Operands are in Go's order: the destination is last.

// VDPBF16PS adds to each float32 of sum the dot product of the bf16 pairs in the same lane of x and
// y.
func VDPBF16PS(x, y, sum VecPhysical) { bf16Instruction("VDPBF16PS", prefixF3, 0x52, x, y, sum) }

// VCVTNE2PS2BF16 rounds the vectors low and high to bf16. The lower half of z gets the elements of
// low, the upper half the elements of high.
func VCVTNE2PS2BF16(low, high, z VecPhysical) {
	bf16Instruction("VCVTNE2PS2BF16", prefixF2, 0x72, low, high, z)
}

// Prefixes of instructions, as their two-bit codes in EVEX and VEX.
const (
	prefix66 = 1
	prefixF3 = 2
	prefixF2 = 3
)

func bf16Instruction(name string, prefix, opcode byte, x, y, z VecPhysical) {
	code := evex(prefix, opcode, x.PhysicalIndex(), y.PhysicalIndex(), z.PhysicalIndex())
	encoded(fmt.Sprintf("%s %s, %s, %s", name, x.Asm(), y.Asm(), z.Asm()), "AVX512BF16", code[:], nil)
}

// encoded emits an instruction as data, with its text as a comment. uses are the registers that the
// instruction reads.
func encoded(text, isa string, code []byte, uses []Op) {
	var words []string
	for ; len(code) >= 4; code = code[4:] {
		words = append(words, fmt.Sprintf("LONG $%#08x", binary.LittleEndian.Uint32(code)))
	}
	for ; len(code) >= 2; code = code[2:] {
		words = append(words, fmt.Sprintf("WORD $%#04x", binary.LittleEndian.Uint16(code)))
	}
	for _, b := range code {
		words = append(words, fmt.Sprintf("BYTE $%#02x", b))
	}
	Instruction(&ir.Instruction{Opcode: strings.Join(words, "; ") + " // " + text, Inputs: uses, ISA: []string{isa}})
}

// evex encodes an instruction of the map 0F38, with W0, on three 512-bit registers. The fields reg,
// vvvv and rm, in the order of Intel's manuals, hold the register numbers of z, y and x. The
// encoding inverts the number of y and the upper two bits of the numbers of z and x.
func evex(prefix, opcode byte, x, y, z Index) [6]byte {
	bit := func(r Index, n int) byte { return byte(r>>n) & 1 }
	const map0F38, length512, registers = 2, 2, 3
	return [6]byte{
		0x62,
		(^(bit(z, 3)<<7 | bit(x, 4)<<6 | bit(x, 3)<<5 | bit(z, 4)<<4))&0xf0 | map0F38,
		(^(byte(y) << 3))&0x78 | 1<<2 | prefix,
		length512<<5 | (1^bit(y, 4))<<3,
		opcode,
		registers<<6 | byte(z)&7<<3 | byte(x)&7,
	}
}
