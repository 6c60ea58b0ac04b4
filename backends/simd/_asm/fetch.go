package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const line = 64 // bytes of a cache line

// fetch emits the routine that prefetches rows. Kernels read more rows at a time than the hardware
// prefetcher follows, so they prefetch rows themselves.
func (g *generator) fetch() {
	g.routine("fetch", "func(from *byte, step, bytes, rows int)",
		"prefetches into L2 every cache line of the rows at from. rows is the number of rows, bytes the",
		"size of a row, and step the distance between rows in bytes. The memory may be unmapped. bytes > 0, rows > 0.")
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

// prefetchLines emits prefetches from at up to end, one for each cache line. It advances at.
func prefetchLines(label string, at, end GPVirtual) {
	Label(label)
	PREFETCHT1(Mem{Base: at})
	ADDQ(Imm(line), at)
	CMPQ(at, end)
	JB(LabelRef(label))
}
