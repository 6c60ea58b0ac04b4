//go:build amd64 && !purego

package simd

import (
	"context"

	"github.com/flashkit-go/flashkit"
)

var avx512Decode = decodeISA{
	laneISA: &avx512Lanes, rows: 4, split: 32, tails: true,
	pace: pace{start: 200, flop: .005, pair: 2.4, element: .16, widen: .055},

	attend:   [...]attendFunc{attendF32AVX512, attendF16AVX512, attendBF16AVX512},
	attendAt: [...]attendAtFunc{attendAtF32AVX512, attendAtF16AVX512, attendAtBF16AVX512},
	weights:  decodeWeightsAVX512,
}

// decode_avx512 is decode with 16 elements of a row in the lanes.
func (b *Backend) decodeAVX512(ctx context.Context, c *flashkit.Call) error {
	return b.decode(ctx, c, decodeTurns, decodeFloats(c), decodeAVX512Chunks, decodeAVX512Merge)
}

func decodeAVX512Chunks(j *job, ws *arena, item int) { avx512Decode.chunks(j, ws, item) }
func decodeAVX512Merge(j *job, ws *arena, item int)  { avx512Decode.merge(j, ws, item) }
