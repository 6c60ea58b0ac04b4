//go:build amd64 && !purego

package simd

import (
	"context"

	"github.com/flashkit-go/flashkit"
)

var avx2Lanes = laneISA{
	lanes: 16, keys: 192, block: 8, convert: 8, looks: true,
	fwdPace:   pace{start: 1100, flop: .0093, pair: .16, element: .05, widen: .29, pack: .42, feature: 1.2},
	shortPace: pace{start: 275, flop: .0093, pair: .16, element: .05, widen: .29, pack: .1, feature: 1.2},
	bwdPace:   pace{start: 3500, flop: .0104, pair: .67, element: 1, widen: .31, pack: .17},

	scores: scoresAVX2, maskScores: maskScoresAVX2, weights: weightsAVX2, totals: totalsAVX2,
	addValues: addValuesAVX2, addValuesMasked: addValuesMaskedAVX2, addSum: addSumAVX2, transpose: transposeAVX2,
	dots: dotsAVX2, gradients: gradientsAVX2,
	addProduct: addProductAVX2, addProductT: addProductTAVX2,
	widenF16: widenF16AVX2, widenBF16: widenBF16AVX2, narrowF16: narrowF16AVX2, narrowBF16: narrowBF16AVX2,
	setPanel: copyRowsAVX2, addPanelTo: addRowsAVX2,

	attendTile: attendTileAVX2, adjust: adjustAVX2, maskBits: maskBitsAVX2, fetch: fetchAVX2, dropWeights: dropWeightsAVX2, keepKeys: keepKeysAVX2, gradientsOf: gradientsOfAVX2,
}

// addValuesAVX2 is addValuesMaskedAVX2 with all keys visible.
func addValuesAVX2(o, v *float32, step int, p *float32, keys, vdim int, alpha *float32) {
	addValuesMaskedAVX2(o, v, step, p, keys, vdim, alpha, nil)
}

// fwd_avx2 is fwdLanes with 16 query rows in the lanes.
func (b *Backend) fwdAVX2(ctx context.Context, c *flashkit.Call) error {
	return b.fwdLanes(ctx, c, &avx2Lanes, fwdAVX2Item)
}

func fwdAVX2Item(j *job, ws *arena, item int) { avx2Lanes.fwdItem(j, ws, item) }
