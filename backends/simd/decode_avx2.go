//go:build amd64 && !purego

package simd

import (
	"context"

	"github.com/flashkit-go/flashkit"
)

var avx2Decode = decodeISA{
	laneISA: &avx2Lanes, rows: 2, split: 16,
	pace: pace{start: 200, flop: .01, pair: 2.5, element: .18, widen: .06},

	attend:   [...]attendFunc{attendF32AVX2, attendF16AVX2, attendBF16AVX2},
	attendAt: [...]attendAtFunc{attendAtF32AVX2, attendAtF16AVX2, attendAtBF16AVX2},
	weights:  decodeWeightsAVX2,
}

// decode_avx2 is decode with 8 elements of a row in the lanes.
func (b *Backend) decodeAVX2(ctx context.Context, c *flashkit.Call) error {
	return b.decode(ctx, c, decodeTurns, decodeFloats(c), decodeAVX2Chunks, decodeAVX2Merge)
}

func decodeAVX2Chunks(j *job, ws *arena, item int) { avx2Decode.chunks(j, ws, item) }
func decodeAVX2Merge(j *job, ws *arena, item int)  { avx2Decode.merge(j, ws, item) }
