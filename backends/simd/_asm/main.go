// Asm writes the vector routines of the CPU backend, for one instruction set:
//
//	go run . -isa AVX512 -out ../avx512_amd64.s -stubs ../avx512_amd64.go -pkg simd
//	go run . -isa AVX2 -out ../avx2_amd64.s -stubs ../avx2_amd64.go -pkg simd
//	go run . -isa AVX512BF16 -out ../avx512bf16_amd64.s -stubs ../avx512bf16_amd64.go -pkg simd
//	go run . -isa AMXBF16 -out ../amxbf16_amd64.s -stubs ../amxbf16_amd64.go -pkg simd
//
// and with -decode those of the decode kernels, which are in decode.go.
//
// In every routine the queries of a tile are in the lanes of two vectors. S is
// [keys][lanes], Q transposed is [dim][lanes], O transposed is [vdim][lanes], so
// K and V are read as they lie, one broadcast element at a time.
package main

import (
	"flag"

	. "github.com/mmcloughlin/avo/build"
)

func main() {
	name := flag.String("isa", "AVX512", "instruction `set`: AVX512, AVX2, AVX512BF16 or AMXBF16")
	few := flag.Bool("decode", false, "write the routines for few query rows")
	flag.Parse()
	use(*name)
	ConstraintExpr("!noasm,!purego")
	if *few {
		decode()
		Generate()
		return
	}
	switch {
	case bf16:
		bf16Routines()
		Generate()
		return
	case amx:
		amxRoutines()
		planeRoutines()
		Generate()
		return
	}
	scores(false)
	scores(true)
	maskScores()
	weights()
	totals()
	values(false)
	values(true)
	addSum()
	transpose()
	if isa == "AVX512" {
		convertAVX512()
	} else {
		convertAVX2()
		cpuidF16C()
	}
	dots()
	gradients()
	for _, transposed := range []bool{false, true} {
		product(transposed, false)
		if isa == "AVX512" {
			product(transposed, true)
		}
	}
	limits()
	Generate()
}
