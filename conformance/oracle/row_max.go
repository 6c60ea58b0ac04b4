package oracle

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// RowMax returns the largest score of each row [B, H, N] of a valid problem with RowMax. It is -Inf
// for a row that sees no key, and for a row beyond the end of its sequence. A visible score of NaN
// or +Inf gives NaN. With Carry, earlier row maxima count if the earlier LSE is not -Inf.
func RowMax(p flashkit.Problem, in Inputs) (list []float64) {
	if p.QLen == 0 {
		return nil // Heads may then be any number
	}
	for b := range p.Batch {
		for h := range p.Heads {
			a := newHead(p, &in, b, h)
			for i, row := range a.scores() {
				top := math.Inf(-1)
				for _, x := range row {
					top = math.Max(top, x) // math.Max keeps a NaN, unless the other number is +Inf
					if math.IsInf(x, 1) || math.IsNaN(x) {
						top = math.NaN()
						break
					}
				}
				if p.Carry && !math.IsInf(in.LSE[a.from+i], -1) {
					top = math.Max(top, in.RowMax[a.from+i])
				}
				list = append(list, top)
			}
			for range p.QLen - a.p.QLen {
				list = append(list, math.Inf(-1))
			}
		}
	}
	return list
}
