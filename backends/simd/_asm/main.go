// Asm writes the AVX-512 routines of the CPU backend:
//
//	go run . -out ../avx512_amd64.s -stubs ../avx512_amd64.go -pkg simd
//
// In every routine the queries of a tile are in the lanes: 32 of them, two
// vectors. S is [keys][32], Q transposed is [dim][32], O transposed is
// [vdim][32], so K and V are read as they lie, one broadcast element at a time.
package main

import (
	. "github.com/mmcloughlin/avo/build"
)

const (
	lanes     = 32        // queries of a tile
	rowBytes  = lanes * 4 // of S, Qᵀ and Oᵀ
	vectors   = lanes / 16
	groupRows = 8 // rows of the register tile: 8 x 2 accumulators, and room for the rest
)

func main() {
	ConstraintExpr("!noasm,!purego")
	scores()
	maskScores()
	weights()
	values("addValuesAVX512", false)
	values("addValuesMaskedAVX512", true)
	transpose()
	convert()
	gradients()
	outer()
	limits()
	Generate()
}
