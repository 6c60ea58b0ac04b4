package main

import (
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

// Rows are prefetched again when they are so many keys nearer: a processor may drop a prefetch where it has no place
// for another line that is to come.
var nearer = []int{0, 8, 16}

// scatteredRows lie where a table says. Those that are prefetched come a line of each at a time, as with even rows:
// many at once would leave no place for the loads that wait for the second-level cache.
func (t storage) scatteredRows(name, dim string, keys int) keyRows {
	const entry = 8
	at := param(name + "At")
	rows := make([]GPVirtual, keys)
	for i := range rows {
		rows[i] = GP64()
		MOVQ(Mem{Base: at, Disp: i * entry}, rows[i])
	}
	ahead := param("ahead")
	LEAQ(Mem{Base: at, Index: ahead, Scale: entry}, at)
	later, place := at, Mem{}
	inTurns, prefetched, times := t.vectorBytes < line && keys == decodeKeys, keys, nearer
	if inTurns {
		prefetched /= 2
		times = nearer[:1] // each pass over rows of Q prefetches again
		place = AllocLocal(entry)
		MOVQ(at, place)
	}
	var offset, others GPVirtual
	return keyRows{
		begin: func() (along, n GPVirtual) {
			offset = param(name)
			if inTurns {
				later, others = GP64(), GP64()
				MOVQ(place, later)
				MOVQ(U32(uint32(prefetched*entry)), others)
			}
			return GP64(), param(dim)
		},
		prefetch: func() {
			row := GP64()
			for _, before := range times {
				for i := range prefetched {
					MOVQ(Mem{Base: later, Disp: (i - before) * entry}, row)
					PREFETCHT1(Mem{Base: row, Index: offset, Scale: 1})
				}
			}
		},
		row: func(i int) Mem { return Mem{Base: rows[i], Index: offset, Scale: 1} },
		advance: func() {
			ADDQ(U32(uint32(t.vectorBytes)), offset)
			if inTurns {
				ADDQ(others, later)
				NEGQ(others)
			}
		},
		end: func() {
			ADDQ(Imm(uint64(keys*entry)), address(name+"At"))
			SUBQ(Imm(uint64(keys)), address(name+"Keys"))
		},
	}
}
