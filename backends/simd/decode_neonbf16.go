//go:build arm64 && !purego

package simd

import "github.com/flashkit-go/flashkit"

// decode_neonbf16 is decode_neonfhm with bfloat16 products, by BFMLALB and BFMLALT: even and odd
// elements of K and V have separate sums. Weights are rounded to bfloat16.
var neonBF16Decode = decodeRoutines{
	laneRoutines: &neonLanes, rows: 2, split: neonSplit, tails: true, halves: true,
	pace: neonPace(decodeHalvesCycles),

	attend:  [3]attendFunc{flashkit.BFloat16: attendBF16NEONBF16},
	weights: decodeWeightsNEON,
}

const neonSplit = 8 // elements of a row of O, stored even ones first; a shorter rest keeps its order

func fitsDecodeNEONBF16(p flashkit.Problem) string {
	return refusesAllBut(flashkit.BFloat16, p, fitsDecode(neonBF16, p))
}
