package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A keyRows is the rows of a register tile's keys, of K or of V, which lie where a table says.
//
// Prefetches bring a line of each row at a time into the second-level cache: some processors have few
// misses of the first one under way, and many prefetches at once would leave no place for the loads
// that wait. Where rows are a fixed distance ahead, they are prefetched from there. Otherwise the table
// has their places too.
type keyRows struct {
	storage
	name, dim string // of the arguments
	keys      int
	rows      []GPVirtual
	offset    GPVirtual // of the vector at hand in every row
	later     GPVirtual // odd: the offset of what is prefetched; even: its places
	apart     *[]func() // emit code that follows the routine
}

// Rows are prefetched again when they are so many keys nearer: a processor may drop a prefetch where it has no place
// for another line that is to come.
var nearer = []int{0, 8, 16}

const entry = 8 // bytes of a table of places

// beginKeys makes the distance of prefetches of k or v the odd offset of the first of them.
func beginKeys(name string) {
	ahead := param(name + "Ahead")
	TESTQ(ahead, ahead)
	JZ(LabelRef(name + "places"))
	ADDQ(address(name), ahead)
	INCQ(ahead)
	MOVQ(ahead, address(name+"Ahead"))
	Label(name + "places")
}

// keyRows loads the places of some keys of the arguments of these names, k or v and its dimension.
func (t storage) keyRows(name, dim string, keys int, apart *[]func()) *keyRows {
	k := &keyRows{storage: t, name: name, dim: dim, keys: keys, apart: apart}
	at := param(name + "At")
	for i := range keys {
		row := GP64()
		MOVQ(Mem{Base: at, Disp: i * entry}, row)
		k.rows = append(k.rows, row)
	}
	return k
}

// begin goes to the first vectors and returns the rows' length.
func (k *keyRows) begin(label string) (n GPVirtual) {
	k.offset, k.later = param(k.name), param(k.name+"Ahead")
	TESTL(U32(1), k.later.As32())
	JZ(LabelRef(label + "places"))
	Label(label + "begin")
	*k.apart = append(*k.apart, func() {
		Label(label + "places")
		Load(Param("ahead"), k.later)
		SHLQ(Imm(3), k.later)
		ADDQ(address(k.name+"At"), k.later)
		JMP(LabelRef(label + "begin"))
	})
	return param(k.dim)
}

// row returns the vector at hand of a row.
func (k *keyRows) row(i int) Mem { return Mem{Base: k.rows[i], Index: k.offset, Scale: 1} }

// prefetch emits the prefetches of a line of each row, once a line.
func (k *keyRows) prefetch(label string) {
	if k.vectorBytes < line {
		TESTL(U32(line/2), k.offset.As32())
		JNZ(LabelRef(label + "fetched"))
	}
	TESTL(U32(1), k.later.As32())
	JZ(LabelRef(label + "table"))
	for _, row := range k.rows {
		PREFETCHT1(Mem{Base: row, Index: k.later, Scale: 1})
	}
	ADDQ(Imm(line), k.later)
	Label(label + "fetched")
	*k.apart = append(*k.apart, func() {
		Label(label + "table")
		times, row := nearer, GP64()
		if k.vectorBytes < line {
			times = nearer[:1] // each pass over rows of Q prefetches again
		}
		for _, before := range times {
			for i := range k.rows {
				MOVQ(Mem{Base: k.later, Disp: (i - before) * entry}, row)
				PREFETCHT1(Mem{Base: row, Index: k.offset, Scale: 1})
			}
		}
		JMP(LabelRef(label + "fetched"))
	})
}

// advance goes to the next vectors.
func (k *keyRows) advance() { ADDQ(U32(uint32(k.vectorBytes)), k.offset) }

// end goes to the next keys.
func (k *keyRows) end() {
	ADDQ(Imm(uint64(k.keys*entry)), address(k.name+"At"))
	SUBQ(Imm(uint64(k.keys)), address(k.name+"Keys"))
}
