//go:build arm64 && !purego

package simd

import "github.com/flashkit-go/flashkit"

// decode_neonfhm is decode_neon with binary16 products, without widening, in the same chunks.
// Products are exact, so scores equal decode_neon's. Weights are rounded to binary16.
var neonFHMDecode = decodeRoutines{
	laneRoutines: &neonLanes, rows: 2, tails: true, halves: true,
	pace: neonPace(decodeHalvesCycles),

	attend:  [3]attendFunc{flashkit.Float16: attendF16NEONFHM},
	weights: decodeWeightsNEON,
}

func fitsDecodeNEONFHM(p flashkit.Problem) string {
	return refusesAllBut(flashkit.Float16, p, fitsDecode(neonFHM, p))
}
