package simd

// The query heads of a KV head read the same keys. A kernel that folds these heads has their rows in
// the same items, so it packs K and V once for all heads. Each head has tiles of foldRows rows. The rows
// that remain, less than foldRows in each head, share tiles: first a row of each head, then the next
// row of each head. The band hides keys row by row, as without folding.

const foldRows = 32 // query rows of a tile

// tile returns the rows of the tile that begins at row r of the folded heads: rows from `from` on of a
// seqTile. The rows belong to one head, or are remaining rows, which alternate.
func (t *seqTile) tile(r int) (of seqTile, from int) {
	of = *t
	if t.fold > 1 && r < t.whole() {
		of.h, of.fold = t.h+r/foldRows%t.fold, 1
		return of, t.queryRow(r)
	}
	return of, r
}

// whole returns the number of rows in tiles of one head.
func (t *seqTile) whole() int { return t.N / foldRows * foldRows * t.fold }

// queryRow returns the query row of row r of the folded heads.
func (t *seqTile) queryRow(r int) int {
	switch {
	case t.fold == 1:
		return r
	case r < t.whole():
		return r/(foldRows*t.fold)*foldRows + r%foldRows
	}
	return r / t.fold
}

// Keys returns the range of keys that row r of the folded heads sees.
func (t *seqTile) Keys(r int) (lo, hi int) { return t.Seq.Keys(t.queryRow(r)) }

// Queries returns the range of rows that see a key. The rows are the rows of a head, or remaining rows.
func (t *seqTile) Queries(key int) (lo, hi int) {
	lo, hi = t.Seq.Queries(key)
	return lo * t.fold, hi * t.fold
}

// place returns the query head of remaining row r, and the row of the tensors.
func (t *seqTile) place(r int) (h, row int) { return t.h + r%t.fold, t.Q0 + r/t.fold }
