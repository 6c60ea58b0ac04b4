//go:build arm64 && !purego

package simd

import "github.com/flashkit-go/flashkit"

// decode_neonbf16 computes what decode_neonfhm computes, with products of bfloat16, by BFMLALB and BFMLALT:
// the even elements of K and V have sums of their own. Weights are rounded to bfloat16.
var neonBF16Decode = decodeISA{
	laneISA: &neonLanes, rows: 2, split: neonSplit, tails: true, halves: true,
	pace: neonPace(decodeHalvesCycles),

	attend:  [3]attendFunc{flashkit.BFloat16: attendBF16NEONBF16},
	weights: decodeWeightsNEON,
}

const neonSplit = 8 // elements of a row of O, of which the even ones come first, but for the last ones, which are fewer

func fitsDecodeNEONBF16(p flashkit.Problem) string {
	return refusesAllBut(flashkit.BFloat16, p, fitsDecode(neonBF16, p))
}
