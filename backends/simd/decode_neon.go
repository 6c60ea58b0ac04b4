//go:build arm64 && !purego

package simd

// decode_neon is decode with 4 elements of a row in the lanes.
var neonDecode = decodeRoutines{
	laneRoutines: &neonLanes, rows: 2, tails: true,
	pace: neonPace(decodeCycles),

	attend:  [...]attendFunc{attendF32NEON, attendF16NEON, attendBF16NEON},
	weights: decodeWeightsNEON,
}
