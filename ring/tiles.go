package ring

import "github.com/flashkit-go/flashkit"

// A tile is a rectangle of one sequence's scores: rows of one rank and keys of the same or another
// rank, masked by a single band. q0, q1, k0 and k1 count from the sequence's first row or key in
// the ranks' tensors.
type tile struct {
	seq            int
	q0, q1, k0, k1 int
	row, key       int // positions of q0 and k0 in the sequence, if the tile's rows and keys are contiguous there
	band           flashkit.Band
}

// A tiler finds the tiles of one sequence between a rank's rows and the keys of the same or another
// rank.
type tiler struct {
	c        *Cut
	seq      *flashkit.Seq
	b        int
	rows     []Span // spans of the rank
	keys     []Span // spans of the other rank
	lo, hi   []int  // local row x sees the local keys [lo[x], hi[x])
	found    []tile
	oneRun   bool // a tile's rows must be contiguous in the sequence
	oneRunKV bool // a tile's keys must be contiguous in the sequence
}

// tiles returns the tiles of sequence b between rows and keys. Together, the tiles cover every
// visible pair once.
func (c *Cut) tiles(b int, rows, keys []Span) []tile {
	f := c.p.Features()
	t := tiler{c: c, seq: &c.seqs[b], b: b, rows: rows, keys: keys}
	t.oneRun = f&featureScopes.position != 0
	t.oneRunKV = t.oneRun || f&featureScopes.pair != 0
	for _, s := range rows {
		for i := s.From; i < s.To; i++ {
			lo, hi := t.seq.Keys(i)
			lo, hi = keysBefore(keys, lo), keysBefore(keys, hi)
			t.lo, t.hi = append(t.lo, lo), append(t.hi, max(lo, hi))
		}
	}
	t.cover(0, len(rows))
	return t.found
}

// keysBefore returns the number of keys in spans that precede key j of the sequence.
func keysBefore(spans []Span, j int) (n int) {
	for _, s := range spans {
		n += max(0, min(j, s.To)-s.From)
	}
	return n
}

func lens(spans []Span) (n int) {
	for _, s := range spans {
		n += s.len()
	}
	return n
}

// cover finds tiles for the rows of spans [a, b). If one tile does not suffice, cover divides the
// spans into two halves and covers each half. For a single span of rows, cover makes one tile per
// span of keys.
func (t *tiler) cover(a, b int) {
	x0 := lens(t.rows[:a])
	x1 := x0 + lens(t.rows[a:b])
	oneRun := b-a == 1
	if (oneRun || !t.oneRun) && (len(t.keys) == 1 || !t.oneRunKV) && t.fit(x0, x1, 0, lens(t.keys), -1) {
		return
	}
	if !oneRun && b > a {
		t.cover(a, (a+b)/2)
		t.cover((a+b)/2, b)
		return
	}
	at := 0
	for i, s := range t.keys {
		t.fit(x0, x1, at, at+s.len(), i)
		at += s.len()
	}
}

// If a single band masks the keys [j0, j1) for all rows [x0, x1), fit adds one tile and returns
// true. If none of these rows sees a key, fit adds no tile and returns true. Otherwise fit returns
// false. span is the index of the keys' span, -1 for several spans.
func (t *tiler) fit(x0, x1, j0, j1, span int) bool {
	sees := func(x int) (lo, hi int) {
		lo, hi = max(t.lo[x], j0), min(t.hi[x], j1)
		return lo, max(lo, hi)
	}
	blind := func(x int) bool { lo, hi := sees(x); return lo == hi }
	for x0 < x1 && blind(x0) {
		x0++
	}
	for x0 < x1 && blind(x1-1) {
		x1--
	}
	if x0 == x1 {
		return true
	}
	k0, h := sees(x0)
	l, k1 := sees(x1 - 1)
	// Row x sees keys from x+lowest on if lower is true, and keys before x+highest if upper is
	// true.
	lower, upper, lowest, highest := l > k0, h < k1, l-(x1-1), h-x0
	for x := x0; x < x1; x++ {
		lo, hi := k0, k1
		if lower {
			lo = max(k0, x+lowest)
		}
		if upper {
			hi = min(k1, x+highest)
		}
		if wantLo, wantHi := sees(x); wantLo == wantHi && lo < hi || wantLo < wantHi && (lo != wantLo || hi != wantHi) {
			return false
		}
	}
	f := tile{seq: t.b, q0: x0, q1: x1, k0: k0, k1: k1, row: t.row(x0)}
	if t.oneRunKV || span >= 0 || len(t.keys) == 1 {
		i := max(span, 0)
		f.key = t.keys[i].From + k0 - lens(t.keys[:i])
	}
	if more := f.key % dropoutAlign; t.c.p.Score.Dropout != 0 {
		f.k0, f.key = k0-more, f.key-more // the added keys are hidden by the band
	}
	if t.oneRun {
		f.band = t.band(f.row, f.key)
	} else {
		f.band = localBand(lower, lowest+x0-k0, upper, highest+x0-k0-1)
	}
	t.found = append(t.found, f)
	return true
}

// localBand returns a band aligned to the first row and key. Row i sees keys from i+lo on if lower
// is true, and keys up to i+hi if upper is true.
func localBand(lower bool, lo int, upper bool, hi int) flashkit.Band {
	switch {
	case lower && upper:
		return flashkit.Window(hi-lo, 0).TopLeft().Shift(hi)
	case lower:
		return flashkit.Window(0, flashkit.Unlimited).TopLeft().Shift(lo)
	case upper:
		return flashkit.Causal().TopLeft().Shift(hi)
	}
	return flashkit.Band{}
}

// unshifted returns a band equal to b for n rows and m keys. If b equals an unshifted band that is
// aligned to the last row and key, the result is that band: most kernels expect this form.
func unshifted(b flashkit.Band, n, m int) flashkit.Band {
	if b.IsTopLeft() && b.Shifted() == m-n {
		return flashkit.Window(b.Left(), b.Right())
	}
	return b
}

// row converts the rank's local row x to a row of the sequence.
func (t *tiler) row(x int) int {
	for _, s := range t.rows {
		if x < s.len() {
			return s.From + x
		}
		x -= s.len()
	}
	return 0
}

// band returns the problem's band for a tile that starts at row i and key j of the sequence. It
// keeps the sequence's diagonal, from which ALiBi counts.
func (t *tiler) band(i, j int) flashkit.Band {
	b := t.c.p.Band
	return flashkit.Window(b.Left(), b.Right()).TopLeft().Shift(i + t.seq.Diagonal - j)
}
