//go:build arm64 && !purego

package simd

import (
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// neonBF16Decode has the routines of decode_neonbf16. BFMLALB multiplies even elements of bfloat16
// vectors and BFMLALT odd ones. So even and odd elements of K and V have separate sums. Weights are
// rounded to bfloat16.
var neonBF16Decode = decodeRoutines{
	laneRoutines: &neonLanes, rows: 2, split: neonSplit, tails: true, halves: true,
	pace: neonPace(decodeHalvesCycles),

	attend:  [3]attendFunc{flashkit.BFloat16: attendBF16NEONBF16},
	weights: decodeWeightsNEON,

	joinRow: joinGroups,
}

const neonSplit = 8 // in each 8 elements of a row of O, the even ones come first; fewer elements at the end keep their order

func fitsDecodeNEONBF16(p flashkit.Problem) string {
	return refusesAllBut(flashkit.BFloat16, p, fitsDecode(neonBF16, p))
}

// joinGroups puts the elements of each group of neonSplit elements of x back in order. n is the
// number of elements.
func joinGroups(x *float32, n int) {
	for row := unsafe.Slice(x, n); len(row) > 0; row = row[neonSplit:] {
		group := [neonSplit]float32(row)
		for i := range neonSplit / 2 {
			row[2*i], row[2*i+1] = group[i], group[neonSplit/2+i]
		}
	}
}
