//go:build arm64 && !purego

package simd

import (
	"context"

	"github.com/flashkit-go/flashkit"
)

// decode_neonfhm computes what decode_neon computes, in the same chunks, with products of binary16 as
// it lies. Each is exact, so scores are those of widened elements. Weights are rounded to binary16.
func (b *Backend) decodeNEONFHM(ctx context.Context, c *flashkit.Call) error {
	return b.decode(ctx, c, decodeTurns, decodeFloats(c), decodeNEONFHMChunks, decodeNEONFHMMerge)
}

var neonFHMDecode = decodeISA{
	laneISA: &neonLanes, rows: 2, tails: true, halves: true,
	pace: neonPace(decodeHalvesCycles),

	attend:   [3]attendFunc{flashkit.Float16: attendF16NEONFHM},
	attendAt: [3]attendAtFunc{flashkit.Float16: attendAtF16NEONFHM},
	weights:  decodeWeightsNEON,
}

func fitsDecodeNEONFHM(p flashkit.Problem) string {
	return refusesAllBut(flashkit.Float16, p, fitsDecode(neonFHM, p))
}

func decodeNEONFHMChunks(j *job, ws *arena, item int) { neonFHMDecode.chunks(j, ws, item) }
func decodeNEONFHMMerge(j *job, ws *arena, item int)  { neonFHMDecode.merge(j, ws, item) }
