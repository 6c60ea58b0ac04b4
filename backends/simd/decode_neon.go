//go:build arm64 && !purego

package simd

import (
	"context"

	"github.com/flashkit-go/flashkit"
)

var neonDecode = decodeISA{
	laneISA: &neonLanes, rows: 2, tails: true,
	pace: neonPace(decodeCycles),

	attend:   [...]attendFunc{attendF32NEON, attendF16NEON, attendBF16NEON},
	attendAt: [...]attendAtFunc{attendAtF32NEON, attendAtF16NEON, attendAtBF16NEON},
	weights:  decodeWeightsNEON,
}

// decode_neon is decode with 4 elements of a row in the lanes.
func (b *Backend) decodeNEON(ctx context.Context, c *flashkit.Call) error {
	return b.decode(ctx, c, decodeTurns, decodeFloats(c), decodeNEONChunks, decodeNEONMerge)
}

func decodeNEONChunks(j *job, ws *arena, item int) { neonDecode.chunks(j, ws, item) }
func decodeNEONMerge(j *job, ws *arena, item int)  { neonDecode.merge(j, ws, item) }
