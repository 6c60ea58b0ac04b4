package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const line = 64 // bytes of a cache line

// fetch emits the prefetch of rows that are read side by side: more of them than the
// processor follows by itself.
func (g *generator) fetch() {
	g.routine("fetch", "func(from *byte, step, bytes, rows int)",
		"brings rows rows of so many bytes, step bytes apart, into the second-level cache, and what else is in",
		"their cache lines. It may name memory that is not there. bytes > 0, rows > 0.")
	from, step, bytes, rows := param("from"), param("step"), param("bytes"), param("rows")
	Label("row")
	at, end := GP64(), GP64()
	MOVQ(from, at)
	ANDQ(I32(-line), at)
	LEAQ(Mem{Base: from, Index: bytes, Scale: 1}, end)
	prefetchLines("line", at, end)
	ADDQ(step, from)
	DECQ(rows)
	JNZ(LabelRef("row"))
	RET()
}

// prefetchLines emits the prefetching of what lies from at up to end, a line at a time. It
// moves at.
func prefetchLines(label string, at, end GPVirtual) {
	Label(label)
	PREFETCHT1(Mem{Base: at})
	ADDQ(Imm(line), at)
	CMPQ(at, end)
	JB(LabelRef(label))
}
