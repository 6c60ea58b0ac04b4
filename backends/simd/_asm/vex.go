package main

import (
	"encoding/binary"
	"fmt"

	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// Neither avo nor Go's assembler has the instructions of AMX, so this file writes them as data.
// Operands are in Go's order: the destination is last. A tile is given by its number. In memory,
// rows of a tile are step bytes apart.

const amxBF16 = "AMXBF16" // the required instruction set

// LDTILECFG configures the tiles from the 64 bytes at base.
func LDTILECFG(base GPPhysical) {
	m := modRM{code: []byte{low(base)}, b: high(base), uses: []Op{base}}
	encoded("LDTILECFG ("+base.Asm()+")", amxBF16, vex(0, 0x49, 0, m), m.uses)
}

// TILERELEASE releases all tiles.
func TILERELEASE() { encoded("TILERELEASE", amxBF16, vex(0, 0x49, 0, tiles(0, 0)), nil) }

func TILEZERO(t int) {
	encoded(fmt.Sprintf("TILEZERO T%d", t), amxBF16, vex(prefixF2, 0x49, 0, tiles(t, 0)), nil)
}

func TILELOADD(offset int, base, step GPPhysical, t int) {
	text, m := fmt.Sprintf("TILELOADD %d(%s)(%s*1), T%d", offset, base.Asm(), step.Asm(), t), rowsAt(t, offset, base, step)
	encoded(text, amxBF16, vex(prefixF2, 0x4b, 0, m), m.uses)
}

func TILESTORED(t, offset int, base, step GPPhysical) {
	text, m := fmt.Sprintf("TILESTORED T%d, %d(%s)(%s*1)", t, offset, base.Asm(), step.Asm()), rowsAt(t, offset, base, step)
	encoded(text, amxBF16, vex(prefixF3, 0x4b, 0, m), m.uses)
}

// TDPBF16PS adds the product of the tiles a and b to sum.
func TDPBF16PS(b, a, sum int) {
	encoded(fmt.Sprintf("TDPBF16PS T%d, T%d, T%d", b, a, sum), amxBF16, vex(prefixF3, 0x5c, b, tiles(sum, a)), nil)
}

// TDPBUSD adds the product of the tiles a, of unsigned 8-bit integers, and b, of signed ones, to sum.
func TDPBUSD(b, a, sum int) {
	encoded(fmt.Sprintf("TDPBUSD T%d, T%d, T%d", b, a, sum), "AMXINT8", vex(prefix66, 0x5e, b, tiles(sum, a)), nil)
}

// vexVPDPBUSD is VPDPBUSD of AVX-VNNI on 256-bit registers. Go's assembler has only the instruction of
// AVX512-VNNI.
func vexVPDPBUSD(x, y, sum VecPhysical) {
	text := fmt.Sprintf("VPDPBUSD %s, %s, %s", x.Asm(), y.Asm(), sum.Asm())
	encoded(text, "AVXVNNI", vexYMM(prefix66, 0x50, x.PhysicalIndex(), y.PhysicalIndex(), sum.PhysicalIndex()), nil)
}

// vexYMM encodes an instruction of the map 0F38, with W0, on 256-bit registers. The fields reg, vvvv and
// rm hold the register numbers of z, y and x.
func vexYMM(prefix, opcode byte, x, y, z Index) []byte {
	const length256, noR = 1 << 2, 1 << 7
	code := vex(prefix|length256, opcode, int(y), modRM{code: []byte{0xc0 | byte(z)&7<<3 | byte(x)&7}, b: byte(x >> 3)})
	code[1] ^= byte(z>>3) * noR
	return code
}

// A modRM holds the encoded operands of an instruction: the ModRM byte, the bytes after the ModRM
// byte, and two bits for the instruction's prefix.
type modRM struct {
	code []byte
	x, b byte // the fourth bits of the index's and the base's register numbers
	uses []Op
}

func tiles(reg, rm int) modRM { return modRM{code: []byte{0xc0 | byte(reg)<<3 | byte(rm)}} }

func rowsAt(reg, offset int, base, step GPPhysical) modRM {
	const disp32, sib = 0x80, 4
	code := []byte{disp32 | byte(reg)<<3 | sib, low(step)<<3 | low(base)}
	return modRM{binary.LittleEndian.AppendUint32(code, uint32(offset)), high(step), high(base), []Op{base, step}}
}

// low and high split a register's number. The instruction's operand bytes hold the three low bits,
// and the prefix holds the fourth bit.
func low(r GPPhysical) byte  { return byte(r.PhysicalIndex() & 7) }
func high(r GPPhysical) byte { return byte(r.PhysicalIndex() >> 3) }

// vex encodes an instruction of the map 0F38, with W0 and 128 bits. v is the register number in the
// field vvvv. The encoding inverts v, and the fourth bits of the register numbers in m.
func vex(prefix, opcode byte, v int, m modRM) []byte {
	const map0F38, noR = 2, 1 << 7
	return append([]byte{0xc4, noR | (1^m.x)<<6 | (1^m.b)<<5 | map0F38, ^byte(v)&15<<3 | prefix, opcode}, m.code...)
}
