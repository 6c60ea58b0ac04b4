package flashkit

import "math"

// Unlimited, as a side of a Band, means that no key on that side is hidden.
const Unlimited = -1

// A Band says which keys a query row sees. Row i sees key j when
//
//	i+off-left <= j <= i+off+right
//
// where off is KVLen-QLen, so that the last row meets the last key
// (bottom-right alignment), or 0 after TopLeft, plus what Shift says. In a ragged
// problem KVLen and QLen are those of the sequence. The zero value hides nothing.
// A key outside the band has no influence whatever, even when it holds NaN.
type Band struct {
	// One more than the number of keys visible on that side of the diagonal,
	// so that the zero value is "no limit".
	left, right int
	topLeft     bool
	shift       int
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

// Shift returns the same band moved by n keys: with n > 0 every row sees later
// keys, with n < 0 earlier ones. So a shard of a longer sequence, whose first row and
// key lie anywhere in it, is an ordinary problem.
func (b Band) Shift(n int) Band {
	b.shift += n
	return b
}

// Shifted returns by how many keys the band is moved.
func (b Band) Shifted() int { return b.shift }

// maxShift bounds a shift, so that no sum of lengths and shifts overflows.
const maxShift = math.MaxInt / 8

func (b Band) validate() error {
	if l := b.Left(); l < Unlimited {
		return problemErr("Band.left", l, "must be 0 or more keys, or %d for no limit", Unlimited)
	}
	if r := b.Right(); r < Unlimited {
		return problemErr("Band.right", r, "must be 0 or more keys, or %d for no limit", Unlimited)
	}
	if b.shift < -maxShift || b.shift > maxShift {
		return problemErr("Band.shift", b.shift, "must be from %d to %d", -maxShift, maxShift)
	}
	return nil
}

// Diagonal returns off for n query rows and m keys: row i lies on the diagonal at
// key i+off.
func (b Band) Diagonal(n, m int) int {
	if b.topLeft {
		return b.shift
	}
	return m - n + b.shift
}

// Diagonals returns the band in plain numbers for n query rows and m keys: row i
// sees the keys from i+lo to i+hi, both included, of those that there are. Both
// are from -(n+m) to n+m.
func (b Band) Diagonals(n, m int) (lo, hi int) {
	off, reach := b.Diagonal(n, m), n+m // farther than any key lies from any row
	lo, hi = -reach, reach
	if l := b.Left(); l != Unlimited && l < off+reach {
		lo = min(off-l, reach)
	}
	if r := b.Right(); r != Unlimited && r < reach-off {
		hi = max(off+r, -reach)
	}
	return lo, hi
}

// Keys returns the keys that query row i sees, from lo up to but not including
// hi. Both ends never decrease as i grows. A row that sees no key has lo == hi.
// Sequences of unequal length have bands of their own: see Seq.Keys.
func (p Problem) Keys(i int) (lo, hi int) {
	first, last := p.Band.Diagonals(p.QLen, p.KVLen)
	return clamp(i+first, p.KVLen), clamp(i+last+1, p.KVLen)
}

// Queries returns the query rows that see key j, from lo up to but not
// including hi. Both ends never decrease as j grows. See Seq.Queries too.
func (p Problem) Queries(j int) (lo, hi int) {
	first, last := p.Band.Diagonals(p.QLen, p.KVLen)
	return clamp(j-last, p.QLen), clamp(j-first+1, p.QLen)
}

func clamp(x, limit int) int { return max(0, min(x, limit)) }
