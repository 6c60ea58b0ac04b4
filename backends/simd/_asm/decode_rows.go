package main

import (
	"math/bits"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A keyRows holds the current rows of K or V, one row per key. The rows' offsets come from a table:
// the argument kAt or vAt.
//
// In each step along the rows, the code prefetches one cache line for each row into L2. Some
// processors allow few outstanding L1 misses, and many prefetches at once would delay the loads. If
// the rows to prefetch are at a fixed distance, the code adds this distance to the addresses of the
// current rows. Then rows without gaps are prefetched in the order of memory, which the memory
// delivers fastest. Otherwise the code reads the offsets of the rows to prefetch from the table.
type keyRows struct {
	storage
	name, dim string // argument names
	keys      int
	rows      []GPVirtual
	offset    GPVirtual // address k or v, plus the bytes from the start of a row to the current vector
	later     GPVirtual // the offset for the next prefetch and a flag; or, without a flag, the address of table entries
	apart     *[]func() // functions that emit code after the routine's end
}

// nearer says how often a row is prefetched: once for each number n in nearer, when the row is n
// keys less than the prefetch distance ahead. One prefetch may not suffice: a processor may drop a
// prefetch when the miss buffers are full.
var nearer = []int{0, 8, 16}

const entry = 8 // bytes of a table entry

// Flags in the low two bits of a prefetch offset. The address of a table entry has 0 in these bits.
const (
	rowsJoin  = 1 // row follows row without a gap
	rowsApart = 2
)

// beginKeys replaces the argument kAhead or vAhead by the offset of the first prefetch, with a flag.
// An argument of 0 stays 0. dim names the argument that holds the number of elements of a row.
func (t storage) beginKeys(name, dim string) {
	ahead, at, row, apart := param(name+"Ahead"), param(name+"At"), param(dim), GP64()
	TESTQ(ahead, ahead)
	JZ(LabelRef(name + "places"))
	ADDQ(address(name), ahead)
	ANDQ(I32(-4), ahead)
	ORQ(Imm(rowsJoin), ahead)
	CMPQ(address(name+"Keys"), Imm(2))
	JL(LabelRef(name + "join")) // the table may have no second entry
	MOVQ(Mem{Base: at, Disp: entry}, apart)
	SUBQ(Mem{Base: at}, apart)
	SHLQ(Imm(uint64(bits.TrailingZeros(uint(t.bytes)))), row)
	CMPQ(apart, row)
	JEQ(LabelRef(name + "join"))
	XORQ(Imm(rowsJoin^rowsApart), ahead)
	Label(name + "join")
	MOVQ(ahead, address(name+"Ahead"))
	Label(name + "places")
}

// keyRows loads the offsets of the next keys' rows. name is k or v. dim names the argument that
// holds the number of elements of a row.
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

func (k *keyRows) begin(label string) (n GPVirtual) {
	k.offset, k.later = param(k.name), param(k.name+"Ahead")
	TESTL(U32(rowsJoin|rowsApart), k.later.As32())
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

func (k *keyRows) row(i int) Mem { return Mem{Base: k.rows[i], Index: k.offset, Scale: 1} }

// prefetch emits one prefetch for each row, once per cache line of a row. Rows without gaps are
// prefetched in the order of memory: all lines of a row before the next row.
func (k *keyRows) prefetch(label string) {
	if k.keys == 1 && !k.avx512 {
		return // few keys are left
	}
	if k.vectorBytes < line {
		TESTL(U32(line/2), k.offset.As32())
		JNZ(LabelRef(label + "fetched"))
	}
	TESTL(U32(rowsJoin), k.later.As32())
	JZ(LabelRef(label + "apart"))
	for i := range k.rows {
		PREFETCHT1(Mem{Base: k.rows[0], Index: k.later, Scale: 1, Disp: i * line})
	}
	ADDQ(U32(uint32(len(k.rows)*line)), k.later)
	Label(label + "fetched")
	*k.apart = append(*k.apart, func() {
		Label(label + "apart")
		TESTL(U32(rowsApart), k.later.As32())
		JZ(LabelRef(label + "table"))
		for _, row := range k.rows {
			PREFETCHT1(Mem{Base: row, Index: k.later, Scale: 1})
		}
		ADDQ(Imm(line), k.later)
		JMP(LabelRef(label + "fetched"))
		Label(label + "table")
		times, row := nearer, GP64()
		if k.vectorBytes < line {
			times = nearer[:1] // one prefetch suffices: every pass over rows of Q repeats it
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

func (k *keyRows) advance() { ADDQ(U32(uint32(k.vectorBytes)), k.offset) }

func (k *keyRows) end() {
	ADDQ(Imm(uint64(k.keys*entry)), address(k.name+"At"))
	SUBQ(Imm(uint64(k.keys)), address(k.name+"Keys"))
}
