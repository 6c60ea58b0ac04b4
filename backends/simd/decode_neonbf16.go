//go:build arm64 && !purego

package simd

import "github.com/flashkit-go/flashkit"

// neonBF16Decode has the routines of decode_neonbf16. BFMLALB multiplies even elements of bfloat16
// vectors and BFMLALT odd ones. So even and odd elements of K and V have separate sums. Weights are
// rounded to bfloat16.
var neonBF16Decode = decodeRoutines{
	laneRoutines: &neonLanes, rows: 2, split: neonSplit, tails: true, halves: true,
	pace: neonPace(decodeHalvesCycles),

	attend:  [3]attendFunc{flashkit.BFloat16: attendBF16NEONBF16},
	weights: decodeWeightsNEON,
}

const neonSplit = 8 // in each 8 elements of a row of O, the even ones come first; fewer elements at the end keep their order

func fitsDecodeNEONBF16(p flashkit.Problem) string {
	return refusesAllBut(flashkit.BFloat16, p, fitsDecode(neonBF16, p))
}
