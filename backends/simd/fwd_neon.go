//go:build arm64 && !purego

package simd

import "unsafe"

// neonLanes has the routines of fwd_neon and bwd_neon. The 16 lanes of four vectors hold query rows
// in a forward pass, and keys in a backward pass.
var neonLanes = laneRoutines{
	keys: 192, checksFinite: true,
	fwdPace: neonPace(fwdCycles), bwdPace: neonPace(bwdCycles),

	convertRoutines: convertRoutines{
		lanes: 16, block: 4, convert: 8, transpose: transposeNEON,
		widenF16: widenF16NEON, widenBF16: widenBF16NEON, narrowF16: narrowF16NEON, narrowBF16: narrowBF16NEON,
	},
	forwardRoutines: forwardRoutines{
		scores: scoresNEON, maskScores: maskScoresNEON, expScores: expScoresNEON, finalizeLSE: finalizeLSENEON,
		addValues: addValuesNEON,
	},
	backwardRoutines: backwardRoutines{
		dots: dotsNEON, gradients: gradientsNEON, gradientsOf: gradientsOfNEON, addProduct: inPanels(addProductNEON), addProductT: inPanels(addProductTNEON),
		setPanel: copyRowsNEON, accumulateRows: addRowsNEON, dropoutMask: dropoutMaskNEON,
	},

	addSum: addSumNEON, addScaled: addScaledNEON, scaleRows: scaleRowsNEON, scoreMod: scoreModNEON, maskBits: maskBitsNEON, fetch: fetchNEON, dropWeights: dropWeightsNEON,
}

// inPanels returns the product of any number of panels. f computes a panel of 16 columns.
func inPanels(f func(c *float32, cStep int, a *float32, aStep int, b *float32, bStep, rows, n int)) productFunc {
	return func(c *float32, cStep int, a *float32, aStep int, b *float32, bStep, rows, n, columns int) {
		for x := 0; x < columns; x += 16 {
			at := uintptr(x) * unsafe.Sizeof(*c)
			f((*float32)(unsafe.Add(unsafe.Pointer(c), at)), cStep, a, aStep, (*float32)(unsafe.Add(unsafe.Pointer(b), at)), bStep, rows, n)
		}
	}
}
