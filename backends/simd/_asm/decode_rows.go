package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A keyRows is the rows of a register tile's keys, of K or of V. begin goes to their first
// vectors and returns a register for what goes along with them, and their length; advance goes
// to the next vectors, and end to the rows of the next keys.
type keyRows struct {
	begin    func() (along, n GPVirtual)
	prefetch func()
	row      func(i int) Mem
	advance  func()
	end      func()
}

// keyRows returns the rows of some keys of the arguments of these names, k or v and its
// dimension.
func (t storage) keyRows(name, dim string, keys int, scattered bool) keyRows {
	if scattered {
		return t.scatteredRows(name, dim, keys)
	}
	return t.evenRows(name, dim, keys)
}

// evenRows are a step apart. Where a vector is half a cache line, two of four rows are
// prefetched with one vector, and the others with the next. Lines are brought into the
// second-level cache: some processors have few misses of the first one under way.
func (g *generator) evenRows(name, dim string, keys int) keyRows {
	k, step, step3 := param(name), param(name+"Step"), GP64()
	LEAQ(Mem{Base: step, Index: step, Scale: 2}, step3)
	var a, later, others GPVirtual
	inTurns, prefetched := g.vectorBytes < line && keys == decodeKeys, keys
	if inTurns {
		prefetched /= 2
	}
	return keyRows{
		begin: func() (along, n GPVirtual) {
			a, later, along, n = GP64(), param(name+"Ahead"), GP64(), param(dim)
			MOVQ(k, a)
			ADDQ(k, later)
			if inTurns {
				others = GP64()
				LEAQ(Mem{Base: step, Index: step, Scale: 1}, others)
			}
			return along, n
		},
		prefetch: func() {
			for i := range prefetched {
				PREFETCHT1(rowAt(later, step, step3, i))
			}
		},
		row: func(i int) Mem { return rowAt(a, step, step3, i) },
		advance: func() {
			ADDQ(U32(uint32(g.vectorBytes)), a)
			ADDQ(U32(uint32(g.vectorBytes)), later)
			if inTurns {
				ADDQ(others, later)
				NEGQ(others)
			}
		},
		end: func() {
			LEAQ(Mem{Base: k, Index: step, Scale: uint8(keys)}, k)
			MOVQ(k, address(name))
			SUBQ(Imm(uint64(keys)), address(name+"Keys"))
		},
	}
}

// scatteredRows lie where a table says. Those that are prefetched come row by row: lines of
// a page come faster one after the other.
func (t storage) scatteredRows(name, dim string, keys int) keyRows {
	const entry = 8
	at, first := param(name+"At"), param(name)
	rows := make([]GPVirtual, keys)
	for i := range rows {
		rows[i] = GP64()
		MOVQ(Mem{Base: at, Disp: i * entry}, rows[i])
		ADDQ(first, rows[i])
	}
	ahead, end, row := param("ahead"), param(dim), GP64()
	LEAQ(Mem{Base: at, Index: ahead, Scale: entry}, at)
	for i := range keys {
		MOVQ(Mem{Base: at, Disp: i * entry}, row)
		ADDQ(first, row)
		LEAQ(Mem{Base: row, Index: end, Scale: uint8(t.bytes)}, ahead)
		prefetchLines(fmt.Sprintf("%sahead%d_%d", name, keys, i), row, ahead)
	}
	var offset GPVirtual
	return keyRows{
		begin: func() (along, n GPVirtual) {
			offset = GP64()
			XORQ(offset, offset)
			return GP64(), param(dim)
		},
		prefetch: func() {},
		row:      func(i int) Mem { return Mem{Base: rows[i], Index: offset, Scale: 1} },
		advance:  func() { ADDQ(U32(uint32(t.vectorBytes)), offset) },
		end: func() {
			ADDQ(Imm(uint64(keys*entry)), address(name+"At"))
			SUBQ(Imm(uint64(keys)), address(name+"Keys"))
		},
	}
}
