package flashkit

// Unlimited, as a side of a Band, means that no key on that side is hidden.
const Unlimited = -1

// A Band says which keys a query row sees. Row i sees key j when
//
//	i+off-left <= j <= i+off+right
//
// where off is KVLen-QLen, so that the last row meets the last key
// (bottom-right alignment), or 0 after TopLeft. The zero value hides nothing.
// A key outside the band has no influence whatever, even when it holds NaN.
type Band struct {
	// One more than the number of keys visible on that side of the diagonal,
	// so that the zero value is "no limit".
	left, right int
	topLeft     bool
}

// Window returns the band that reaches left keys before the diagonal and right
// keys after it. Either side may be Unlimited.
func Window(left, right int) Band { return Band{left: left + 1, right: right + 1} }

// Causal returns the band in which no row sees a key after the diagonal.
func Causal() Band { return Window(Unlimited, 0) }

// TopLeft returns the same band aligned so that the first row meets the first key.
func (b Band) TopLeft() Band {
	b.topLeft = true
	return b
}

// Left returns the number of keys visible before the diagonal, or Unlimited.
func (b Band) Left() int { return b.left - 1 }

// Right returns the number of keys visible after the diagonal, or Unlimited.
func (b Band) Right() int { return b.right - 1 }

// IsTopLeft reports whether the band is aligned to the first row and key.
func (b Band) IsTopLeft() bool { return b.topLeft }

// diagonals returns the band in plain numbers: row i sees the keys from i+lo
// to i+hi, both included.
func (p Problem) diagonals() (lo, hi int) {
	reach := p.QLen + p.KVLen // farther than any key lies from any row
	side := func(n int) int {
		if n == Unlimited {
			return reach
		}
		return min(n, reach)
	}
	off := p.KVLen - p.QLen
	if p.Mask.topLeft {
		off = 0
	}
	return off - side(p.Mask.Left()), off + side(p.Mask.Right())
}

// Keys returns the keys that query row i sees, from lo up to but not including
// hi. Both ends never decrease as i grows. A row that sees no key has lo == hi.
func (p Problem) Keys(i int) (lo, hi int) {
	first, last := p.diagonals()
	return clamp(i+first, p.KVLen), clamp(i+last+1, p.KVLen)
}

// Queries returns the query rows that see key j, from lo up to but not
// including hi. Both ends never decrease as j grows.
func (p Problem) Queries(j int) (lo, hi int) {
	first, last := p.diagonals()
	return clamp(j-last, p.QLen), clamp(j-first+1, p.QLen)
}

func clamp(x, limit int) int { return max(0, min(x, limit)) }
