package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const line = 64 // bytes of a cache line

// fetch emits the routine that prefetches rows of a matrix. Kernels read several rows in parallel,
// more than the hardware prefetcher tracks, so the kernels prefetch rows themselves.
func (g *generator) fetch() {
	g.routine("fetch", "func(from *byte, step, bytes, rows int)",
		"prefetches all cache lines of a matrix into L2. The matrix begins at address from.",
		"rows is the number of rows, bytes is the size of a row, and step is the row stride in bytes. The",
		"memory may be unmapped. bytes > 0, rows > 0.")
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

// prefetchLines emits a loop that prefetches every cache line from address at up to address end. It
// advances at.
func prefetchLines(label string, at, end GPVirtual) {
	Label(label)
	PREFETCHT1(Mem{Base: at})
	ADDQ(Imm(line), at)
	CMPQ(at, end)
	JB(LabelRef(label))
}
