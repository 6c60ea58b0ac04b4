package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A storage is an element type of K and V.
type storage struct {
	*generator
	name  string
	bytes int
}

func (g *generator) storages() []storage {
	return []storage{{g, "F32", 4}, {g, "F16", 2}, {g, "BF16", 2}}
}

func (g *generator) vectorLen() int { return g.vectorBytes / 4 }

// laneNumbers returns a vector whose element i is i.
func (g *generator) laneNumbers() Mem {
	return g.table("laneNumbers", func() {
		for i := range g.vectorLen() {
			DATA(i*4, U32(i))
		}
	})
}

// halves returns the number of float32 vectors that hold the elements of one stored vector: 1 or 2.
func (t storage) halves() int { return 4 / t.bytes }

// step returns the number of stored elements in a vector.
func (t storage) step() int { return t.vectorBytes / t.bytes }

// tails reports whether rows may end with part of a vector. In AVX2, this part of binary16 is half a
// vector.
func (t storage) tails() bool { return t.avx512 || t.name != "BF16" }

// halvesOf returns the number of float32 vectors that hold the elements of one stored vector, or of the
// part at the end of a row.
func (t storage) halvesOf(end *rowEnd) int {
	if end != nil && t.name == "F16" && !t.avx512 {
		return 1
	}
	return t.halves()
}

func (t storage) order() string {
	if t.name != "BF16" {
		return ""
	}
	return fmt.Sprintf(" In each group of %d elements of a row of q or o, the even elements come first.", t.step())
}

// A rowEnd is the mask of the elements that a row has after its last whole vector.
type rowEnd struct {
	masks  [2]OpmaskPhysical // masks[0] has one bit for each element of a vector, masks[1] the bits of the vector's upper half
	vector VecPhysical       // the mask of AVX2, which has no opmasks
}

// load sets z to one half of the vector of elements at m, widened to float32. If end is not nil,
// the vector is the last of a row: load reads no element beyond the row and sets the other lanes of
// z to 0. For bf16, the two halves are the even and the odd elements of the vector. A bf16 is the
// upper half of a float32, so one shift or mask widens each half.
func (t storage) load(m Mem, half int, z VecPhysical, end *rowEnd) {
	avx512 := t.avx512
	switch t.name {
	case "F32":
		switch {
		case end == nil:
			VMOVUPS(m, z)
		case avx512:
			VMOVUPS_Z(m, end.masks[0], z)
		default:
			VMASKMOVPS(m, end.vector, z)
		}
	case "F16":
		m = m.Offset(half * t.vectorBytes / 2)
		if end != nil && avx512 {
			VCVTPH2PS_Z(m, end.masks[half], z)
		} else {
			VCVTPH2PS(m, z)
		}
	case "BF16":
		var from Op = m
		switch {
		case end != nil:
			VMOVDQU16_Z(m, end.masks[0], z)
			from = z
		case !avx512 && half == 0:
			VMOVDQU(m, z)
			from = z
		}
		switch {
		case half == 0:
			VPSLLD(Imm(16), from, z)
		case avx512:
			VPANDD(from, t.upperWords, z)
		default:
			VPAND(from, t.upperWords, z)
		}
	}
}

// constants loads the masks that load uses. It returns the ends of rows of two lengths. dims names
// the parameters that hold these lengths.
func (t storage) constants(dims [2]string) [2]rowEnd {
	last := t.registers[len(t.registers)-2:]
	if t.name == "BF16" {
		t.upperWords = last[1]
		t.word(0xffff0000, t.upperWords)
	}
	ends := [2]rowEnd{
		{[2]OpmaskPhysical{K1, K2}, last[0]},
		{[2]OpmaskPhysical{K3, K4}, last[1]},
	}
	for i, end := range ends {
		n := param(dims[i])
		switch {
		case t.avx512:
			ones := GP32()
			ANDL(Imm(uint64(t.step()-1)), n.As32())
			MOVQ(n, RCX)
			MOVL(I32(-1), ones)
			SHLL(CL, ones)
			NOTL(ones) // the low n bits
			KMOVD(ones, end.masks[0])
			KSHIFTRD(Imm(16), end.masks[0], end.masks[1])
		case t.bytes == 4:
			ANDL(Imm(uint64(t.step()-1)), n.As32())
			VMOVD(n.As32(), end.vector.AsX())
			VPBROADCASTD(end.vector.AsX(), end.vector)
			VPCMPGTD(t.laneNumbers(), end.vector, end.vector)
		}
	}
	return ends
}

// alongRow emits a loop over the vectors of a row of n elements. vector(nil) emits the code for a
// whole vector, and vector(end) the code for the elements left at the end of the row. advance emits
// the step to the next vector. The loop destroys n.
func (t storage) alongRow(label string, n GPVirtual, end *rowEnd, vector func(end *rowEnd), advance func()) {
	step := Imm(uint64(t.step()))
	SUBQ(step, n)
	JL(LabelRef(label + "tail"))
	Label(label)
	vector(nil)
	advance()
	SUBQ(step, n)
	JGE(LabelRef(label))
	Label(label + "tail")
	if t.tails() {
		ADDQ(step, n)
		JZ(LabelRef(label + "end"))
		vector(end)
		Label(label + "end")
	}
}
