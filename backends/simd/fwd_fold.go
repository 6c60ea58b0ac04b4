package simd

// The query heads of a KV head read the same keys. A kernel that folds these heads has their rows in
// the same tiles: first row 0 of each head, then row 1 of each head. So short heads fill the tiles,
// and K and V are packed once for all heads. The band hides keys row by row, as without folding.

// Keys returns the range of keys that row r of the tile's folded heads sees.
func (t *seqTile) Keys(r int) (lo, hi int) {
	if t.fold > 1 {
		r /= t.fold
	}
	return t.Seq.Keys(r)
}

// Queries returns the range of rows of the tile's folded heads that see a key.
func (t *seqTile) Queries(key int) (lo, hi int) {
	lo, hi = t.Seq.Queries(key)
	return lo * t.fold, hi * t.fold
}

// place returns the query head of row r of the tile's folded heads, and the row of the tensors.
func (t *seqTile) place(r int) (h, row int) { return t.h + r%t.fold, t.Q0 + r/t.fold }
