package oracle

import "github.com/flashkit-go/flashkit"

// KeyMass returns the sum of each key's weights before dropout over the rows of a query head [B, H, M]
// of a valid problem. It is 0 for a key that no row sees, and beyond the end of a sequence.
func KeyMass(p flashkit.Problem, in Inputs) []float64 {
	list := make([]float64, p.Batch*p.Heads*p.KVLen)
	for b := range p.Batch {
		for h := range p.Heads {
			if p.QLen == 0 {
				break
			}
			sums := list[(b*p.Heads+h)*p.KVLen:]
			for _, row := range newHead(p, &in, b, h).prob {
				for j, w := range row {
					sums[j] += w
				}
			}
		}
	}
	return list
}
