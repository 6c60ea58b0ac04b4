package encoder

import (
	"cmp"
	"math"
	"slices"
)

// A Match is a vector of a list and its similarity to a query.
type Match struct {
	Index  int     // in the list
	Cosine float32 // of the angle between the vectors; 0 if a length is 0
}

// Nearest returns the n vectors of the greatest cosine with the query, best first, or all vectors if
// there are fewer. Elements that a vector lacks count as 0. It compares the query with every vector.
func Nearest(query []float32, vectors [][]float32, n int) []Match {
	all := make([]Match, len(vectors))
	for i, v := range vectors {
		dot, a, b := 0.0, 0.0, 0.0
		for j, x := range query {
			a += float64(x) * float64(x)
			if j < len(v) {
				dot += float64(x) * float64(v[j])
			}
		}
		for _, x := range v {
			b += float64(x) * float64(x)
		}
		all[i] = Match{Index: i}
		if length := math.Sqrt(a) * math.Sqrt(b); length > 0 {
			all[i].Cosine = float32(dot / length)
		}
	}
	slices.SortStableFunc(all, func(a, b Match) int { return cmp.Compare(b.Cosine, a.Cosine) })
	return all[:min(max(n, 0), len(all))]
}
