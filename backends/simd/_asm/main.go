// Asm writes the vector routines of the CPU backend for one instruction set:
//
//	go run . -isa AVX512 -out ../avx512_amd64.s -stubs ../avx512_amd64.go -pkg simd
//	go run . -isa AVX2 -out ../avx2_amd64.s -stubs ../avx2_amd64.go -pkg simd
//	go run . -isa AVX512BF16 -out ../avx512bf16_amd64.s -stubs ../avx512bf16_amd64.go -pkg simd
//	go run . -isa AMXBF16 -pass forward -out ../amxbf16_fwd_amd64.s -stubs ../amxbf16_fwd_amd64.go -pkg simd
//	go run . -isa AMXBF16 -pass backward -out ../amxbf16_bwd_amd64.s -stubs ../amxbf16_bwd_amd64.go -pkg simd
//
// Some instruction sets have further passes:
//
//   - decode (AVX512, AVX2, AMXBF16) writes the routines of the decode kernels.
//   - values (AVX512, AVX2) writes the routines that sum products of weights and V.
//   - rows (AVX512, AVX2) writes the routines that copy, add and clear rows of memory.
//   - attend (AVX512, AVX2) writes the routine that computes a whole tile of a short sequence.
//   - matmul (all) writes the routines of internal/matmul.
//   - elements (AVX512, AVX2) writes the routines of internal/elements.
//
// Forward routines keep the queries of a tile in the lanes of two vectors. S is [keys][lanes],
// transposed Q is [dim][lanes] and transposed O is [vdim][lanes]. Elements of K and V are
// broadcast one at a time, so K and V need no transpose.
package main

import (
	"flag"
	"log"

	. "github.com/mmcloughlin/avo/build"
)

func main() {
	name := flag.String("isa", "AVX512", "instruction `set`: AVX512, AVX2, AVX512BF16, AVX512VNNI, AVXVNNI, AMXBF16 or AMXINT8")
	pass := flag.String("pass", "", "`pass` of the routines: forward or backward of AMXBF16, decode of that, AVX512 or AVX2, values, rows, attend, matmul or elements of these, matmul of AVX512BF16, AVX512VNNI, AVXVNNI, AMXBF16 and AMXINT8, else none")
	flag.Parse()
	write, ok := newGenerator(*name).routines()[*pass]
	if !ok {
		log.Fatalf("no routines of %s for pass %q", *name, *pass)
	}
	ConstraintExpr("!purego")
	write()
	Generate()
}

func (g *generator) routines() map[string]func() {
	switch g.suffix {
	case "AVX512", "AVX2":
		return map[string]func(){"": g.laneRoutines, "decode": g.decode, "values": g.valueRoutines, "rows": g.rowRoutines, "attend": func() { g.queryLanes(); g.attend() }, "matmul": g.matmul, "elements": g.elementwise}
	case "AVX512BF16":
		return map[string]func(){"": g.bf16Routines, "matmul": g.pairProducts}
	case "AVX512VNNI", "AVXVNNI":
		return map[string]func(){"matmul": g.int8Routines}
	case "AMXINT8":
		return map[string]func(){"matmul": g.tileDots}
	}
	return map[string]func(){"forward": g.amxForward, "backward": g.amxBackward, "decode": g.amxDecode, "matmul": g.tileMatmul}
}

func (g *generator) laneRoutines() {
	g.scores()
	g.maskScores()
	g.expScores()
	g.finalizeLSE()
	g.transpose()
	if g.avx512 {
		g.convertAVX512()
	} else {
		g.convertAVX2()
		cpuidF16C()
	}
	g.dots()
	g.gradients()
	g.gradientsT()
	for _, transposed := range []bool{false, true} {
		g.product(transposed, false)
		g.product(transposed, true)
	}
	g.featureRoutines()
	g.fetch()
	g.limits()
}

func (g *generator) valueRoutines() {
	g.values()
	g.addSum()
	g.addScaled()
}
