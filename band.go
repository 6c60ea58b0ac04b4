package flashkit

import "math"

// Unlimited, in place of a number of keys, means that this side of a Band hides no key.
const Unlimited = -1

// A Band determines which keys each query row sees. Row i sees key j when
//
//	i+off-left <= j <= i+off+right
//
// An Unlimited side has no bound. Key i+off is on the band's diagonal. By default off is
// KVLen-QLen, which aligns the last row with the last key (bottom-right alignment). After
// TopLeft, off is 0. Shift(n) adds n to off. In a Ragged problem each sequence uses its own
// lengths. The zero Band hides nothing. A key outside the band of a row has no influence on the
// row, even if the key holds NaN.
type Band struct {
	// left is 1 plus the number of visible keys before the diagonal. right is 1 plus the number
	// after the diagonal. 0 means no limit.
	left, right int
	topLeft     bool
	shift       int
}

// Window returns the band in which a row sees the key on the diagonal and its neighbors. left is
// the number of visible keys before the diagonal. right is the number of visible keys after the
// diagonal. Either number may be Unlimited. Problem.Validate refuses numbers below Unlimited.
func Window(left, right int) Band { return Band{left: left + 1, right: right + 1} }

// Causal returns the band in which no row sees a key after the diagonal. With KVLen > QLen, as
// with a KV cache, row i sees the first i+1+KVLen-QLen keys.
func Causal() Band { return Window(Unlimited, 0) }

// TopLeft returns the band aligned with the first row and first key, instead of the last row and
// last key.
func (b Band) TopLeft() Band {
	b.topLeft = true
	return b
}

// Left returns the number of keys visible before the diagonal, or Unlimited, which is -1.
func (b Band) Left() int { return b.left - 1 }

// Right returns the number of keys visible after the diagonal, or Unlimited, which is -1.
func (b Band) Right() int { return b.right - 1 }

// IsTopLeft reports whether the diagonal is aligned with the first row and key.
func (b Band) IsTopLeft() bool { return b.topLeft }

// Shift returns the band moved by n keys: n > 0 shows later keys, n < 0 shows earlier keys. With
// a shift, a problem can be any part of a longer sequence.
func (b Band) Shift(n int) Band {
	b.shift += n
	return b
}

// Shifted returns the number of keys by which the band is moved.
func (b Band) Shifted() int { return b.shift }

// maxShift is the largest absolute shift. With this limit, sums of lengths and shifts cannot
// overflow.
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

// Diagonal returns the offset off in the definition of Band, for n query rows and m keys. The
// diagonal meets row i at key i+off.
func (b Band) Diagonal(n, m int) int {
	if b.topLeft {
		return b.shift
	}
	return m - n + b.shift
}

// Diagonals returns the band as two offsets for n query rows and m keys. Row i sees the keys in
// [0, m) from i+lo to i+hi, both included. Both offsets are in [-(n+m), n+m].
func (b Band) Diagonals(n, m int) (lo, hi int) {
	off, reach := b.Diagonal(n, m), n+m // larger than any distance between a row and a key
	lo, hi = -reach, reach
	if l := b.Left(); l != Unlimited && l < off+reach {
		lo = min(off-l, reach)
	}
	if r := b.Right(); r != Unlimited && r < reach-off {
		hi = max(off+r, -reach)
	}
	return lo, hi
}

// Keys returns the range [lo, hi) of keys that query row i sees. Neither end decreases as i
// grows. A row that sees no key has lo == hi. For sequences of unequal lengths use Seq.Keys.
func (p Problem) Keys(i int) (lo, hi int) {
	first, last := p.Band.Diagonals(p.QLen, p.KVLen)
	return clamp(i+first, p.KVLen), clamp(i+last+1, p.KVLen)
}

// Queries returns the range [lo, hi) of query rows that see key j. Neither end decreases as j
// grows. For sequences of unequal lengths use Seq.Queries.
func (p Problem) Queries(j int) (lo, hi int) {
	first, last := p.Band.Diagonals(p.QLen, p.KVLen)
	return clamp(j-last, p.QLen), clamp(j-first+1, p.QLen)
}

func clamp(x, limit int) int { return max(0, min(x, limit)) }
