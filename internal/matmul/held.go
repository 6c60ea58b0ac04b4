package matmul

// Products in bf16 with AMX. A worker rounds the rows of an item once and keeps them for its next
// item. A row of 16 pairs of A is a row of a tile. The pairs of a part of K are in the order in which
// multiply loads them, [rows/16][pairs/16][16 rows][16 pairs].

const (
	tileRows  = 16      // rows of a tile of AMX
	heldK     = 768     // most products of a partial sum: with AMX, C has the same bits for any number
	heldBytes = 1 << 20 // most bytes of A's rounded rows: they fit the L2 cache with a panel
	heldGroup = 6       // fewest panels of an item, unless workers lack items: each worker rounds A
)

// heldRows returns the most rows of an item.
func (u *isa) heldRows(k int) int {
	return max(u.tile, min(u.rows, heldBytes/2/max(k, 1)/u.tile*u.tile))
}

// fetchLines returns the number of cache lines of the next part of B to prefetch in each step of k.
// This number spreads the prefetches over all rows. The loop multiplies two tiles of A at a time.
func (j *job) fetchLines(rows, width int) int {
	blocks := (rows + 2*j.isa.tile - 1) / (2 * j.isa.tile)
	return (width + blocks - 1) / blocks
}

// blockHeld does the work of block. A panel's sums stay in the cache until finish reads them.
func (j *job) blockHeld(slot, row, first int) {
	work, k, last := j.work[slot], j.args.B.k, min(first+j.group, j.cut.count())
	rows := min(j.rows, j.args.C.Rows-row)
	if j.held[slot] != row && k > 0 {
		j.roundHeld(work, row, rows)
		j.held[slot] = row
	}
	for i := first; i < last; i++ {
		for from := 0; from == 0 || from < k; from += j.kBlock {
			p := part{row: row, rows: rows, from: from, n: min(j.kBlock, k-from), panels: 1}
			p.col, p.width = j.cut.at(i)
			p.sums = work[:rows*p.width]
			if k > 0 {
				p.pairs = j.heldPart(work, from)
			}
			j.part(&p, nil, j.follows(i, first, last, from, p.n))
		}
	}
}

// heldPart returns the address of the pairs from column from on.
func (j *job) heldPart(work []float32, from int) *uint32 {
	return &words(work[j.rounded+j.rows*from/2:][:1])[0]
}

// roundHeld rounds rows of A to pairs in a worker's memory.
func (j *job) roundHeld(work []float32, row, rows int) {
	a, k, tile := &j.args.A, j.args.B.k, j.isa.tile
	for from := 0; from < k; from += j.kBlock {
		n := min(j.kBlock, k-from)
		part := Matrix{Data: a.Data[row*a.RowStride+from*a.ColStride:], Rows: rows, Cols: n, RowStride: a.RowStride, ColStride: a.ColStride}
		if a.ColStride != 1 {
			part.copyTo(work[j.copied:])
		}
		pairs := words(work[j.rounded+j.rows*from/2:])
		for r := 0; r < rows; r += tile {
			j.isa.roundRows(&pairs[r*j.isa.pairsOf(n)], lineWords, tile*lineWords, &part.Data[r*part.RowStride], part.RowStride, n, min(tile, rows-r))
		}
	}
}
