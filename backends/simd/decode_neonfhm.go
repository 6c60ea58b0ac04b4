//go:build arm64 && !purego

package simd

import "github.com/flashkit-go/flashkit"

// decode_neonfhm computes what decode_neon computes, in the same chunks, with products of binary16 as
// it lies. Each is exact, so scores are those of widened elements. Weights are rounded to binary16.
var neonFHMDecode = decodeISA{
	laneISA: &neonLanes, rows: 2, tails: true, halves: true,
	pace: neonPace(decodeHalvesCycles),

	attend:  [3]attendFunc{flashkit.Float16: attendF16NEONFHM},
	weights: decodeWeightsNEON,
}

func fitsDecodeNEONFHM(p flashkit.Problem) string {
	return refusesAllBut(flashkit.Float16, p, fitsDecode(neonFHM, p))
}
