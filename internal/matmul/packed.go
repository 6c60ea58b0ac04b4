package matmul

// Packed is B in panels: of so many columns as a register tile has, one after the other, each
// [K][width]. Columns beyond N are 0. It may be used by any number of calls at the same time,
// but not while Pack runs.
type Packed struct {
	memory []float32
	k, n   int
	err    error // of Pack
}

// Dims returns K and N.
func (p *Packed) Dims() (k, n int) { return p.k, p.n }

// Pack makes p the packed form of b, in p's memory where that is large enough. Strides are
// any but 0. A matrix that reaches beyond its memory leaves p such that every product with it
// is a *flashkit.ProblemError.
func (p *Packed) Pack(b Matrix) {
	p.k, p.n = 0, 0
	if p.err = b.check("B", b.Rows, b.Cols); p.err != nil {
		return
	}
	// A stride of 0 would let few elements claim much memory.
	if b.Rows > 1 && b.Cols > 0 && b.RowStride == 0 {
		p.err = problem("B.RowStride", 0, "must be at least 1")
		return
	}
	if b.Cols > 1 && b.Rows > 0 && b.ColStride == 0 {
		p.err = problem("B.ColStride", 0, "must be at least 1")
		return
	}
	p.k, p.n = b.Rows, b.Cols
	p.reserve(p.k * panelsOf(p.n).vectors * lanes)
	for i := range panelsOf(p.n).count() {
		col, width := panelsOf(p.n).at(i)
		packPanel(p.memory[p.k*col:], b, col, width)
	}
}

func (p *Packed) reserve(n int) {
	if cap(p.memory) < n {
		p.memory = make([]float32, n)
	}
	p.memory = p.memory[:n]
}

// packPanel copies the columns from col on.
func packPanel(dst []float32, b Matrix, col, width int) {
	for k := range b.Rows {
		row := dst[k*width:][:width]
		for c := range row {
			row[c] = 0
			if col+c < b.Cols {
				row[c] = b.Data[k*b.RowStride+(col+c)*b.ColStride]
			}
		}
	}
}

// Panels are the parts of N columns: of three vectors, and one or two of two at the end, as
// a part of one vector would take the time of two.
type panels struct {
	vectors int // in all
	wide    int // panels of three vectors
}

func panelsOf(n int) panels {
	v := (n + lanes - 1) / lanes
	narrow := (3 - v%3) % 3
	return panels{v, max(0, (v-2*narrow)/3)}
}

func (p panels) count() int { return p.wide + (p.vectors-3*p.wide+1)/2 }

// at returns the first column of panel i and its width, that of whole vectors.
func (p panels) at(i int) (col, width int) {
	first := 3 * i
	if i > p.wide {
		first -= i - p.wide
	}
	size := 3
	if i >= p.wide {
		size = min(2, p.vectors-first)
	}
	return first * lanes, size * lanes
}
