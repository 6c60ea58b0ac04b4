//go:build arm64 && !purego

package simd

// neonDecode has the routines of decode_neon. A vector holds 4 elements of a row.
var neonDecode = decodeRoutines{
	laneRoutines: &neonLanes, rows: 2, tails: true,
	pace: neonPace(decodeCycles), gradPace: neonPace(bwdDecodeCycles),

	attend:  [...]attendFunc{attendF32NEON, attendF16NEON, attendBF16NEON},
	weights: decodeWeightsNEON,
}
