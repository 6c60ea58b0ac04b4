package main

import "fmt"

// limits writes the routine that measures the peak rate of multiply-adds. Enough independent sums
// stay in registers to hide the latency of a multiply-add.
func (g *generator) limits() {
	const sums = 24
	g.routine("fmaPeak", "n int",
		fmt.Sprintf("measures the peak rate of multiply-adds. It runs n iterations. One iteration is %d", sums*8),
		fmt.Sprintf("FLOP: %d independent multiply-adds of 4 float32 each.", sums))
	n := g.param("n")
	for v := range sums + 1 {
		g.clear(v)
	}
	g.label("loop")
	for v := range sums {
		g.v("fmla v%d.4s, v%d.4s, v%d.4s", v, sums, sums)
	}
	g.count(n, "loop")
	g.done()
}

// readLimit writes the routine that measures the memory read bandwidth.
func (g *generator) readLimit() {
	const pairs = 8
	g.routine("readPeak", "x *byte, n int",
		fmt.Sprintf("reads n bytes that begin at address x, to measure the memory bandwidth. n is a positive multiple of %d.", 32*pairs))
	x, n := g.param("x"), g.param("n")
	g.label("loop")
	for i := range pairs {
		g.v2("ldp", 2*i, x, 32*i)
	}
	g.op("ADD $%d, %v", 32*pairs, x)
	g.op("SUBS $%d, %v", 32*pairs, n)
	g.op("BNE loop")
	g.done()
}
