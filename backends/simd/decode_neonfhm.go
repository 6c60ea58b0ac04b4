//go:build arm64 && !purego

package simd

import "github.com/flashkit-go/flashkit"

// neonFHMDecode has the routines of decode_neonfhm, which multiplies binary16 elements without
// widening them. Both decode_neonfhm and decode_neon divide keys into the same chunks. A product of
// two binary16 elements is exact in float32, so both kernels compute the same scores. Weights are
// rounded to binary16.
var neonFHMDecode = decodeRoutines{
	laneRoutines: &neonLanes, rows: 2, tails: true, halves: true,
	pace: neonPace(decodeHalvesCycles),

	attend:  [3]attendFunc{flashkit.Float16: attendF16NEONFHM},
	weights: decodeWeightsNEON,
}

func fitsDecodeNEONFHM(p flashkit.Problem) string {
	return refusesAllBut(flashkit.Float16, p, fitsDecode(neonFHM, p))
}
