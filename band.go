package flashkit

import "math"

// Unlimited is the side of a Band that hides no key.
const Unlimited = -1

// A Band is the set of keys that each query row sees. Row i sees key j when
//
//	i+off-left <= j <= i+off+right
//
// off is KVLen-QLen, which aligns the last row with the last key (bottom-right alignment), or
// 0 after TopLeft; Shift adds to it. A ragged problem uses the lengths of each sequence. The
// zero value hides nothing. A key outside the band has no influence, even if it holds NaN.
type Band struct {
	// Visible keys on each side of the diagonal, plus 1: 0 is no limit.
	left, right int
	topLeft     bool
	shift       int
}

// Window returns the band from left keys before the diagonal to right keys after it, both
// included. Either side may be Unlimited; a smaller number fails in Problem.Validate.
func Window(left, right int) Band { return Band{left: left + 1, right: right + 1} }

// Causal returns the band in which no row sees a key after the diagonal. With KVLen > QLen, as
// with a KV cache, row i sees the first i+1+KVLen-QLen keys.
func Causal() Band { return Window(Unlimited, 0) }

// TopLeft returns the band aligned at the first row and key instead of the last.
func (b Band) TopLeft() Band {
	b.topLeft = true
	return b
}

// Left returns the number of keys visible before the diagonal, or Unlimited, which is -1.
func (b Band) Left() int { return b.left - 1 }

// Right returns the number of keys visible after the diagonal, or Unlimited, which is -1.
func (b Band) Right() int { return b.right - 1 }

// IsTopLeft reports whether the band is aligned to the first row and key.
func (b Band) IsTopLeft() bool { return b.topLeft }

// Shift returns the band moved by n keys: n > 0 shows later keys, n < 0 earlier ones. A shard
// that starts anywhere in a longer sequence is thus an ordinary problem.
func (b Band) Shift(n int) Band {
	b.shift += n
	return b
}

// Shifted returns the number of keys by which the band is moved.
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

// Diagonal returns off for n query rows and m keys: the diagonal meets row i at key i+off.
func (b Band) Diagonal(n, m int) int {
	if b.topLeft {
		return b.shift
	}
	return m - n + b.shift
}

// Diagonals returns the band as two offsets for n query rows and m keys. Row i sees the
// existing keys from i+lo to i+hi, both included. Both offsets are in [-(n+m), n+m].
func (b Band) Diagonals(n, m int) (lo, hi int) {
	off, reach := b.Diagonal(n, m), n+m // beyond any distance between a row and a key
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
// grows. A row that sees no key has lo == hi. Seq.Keys serves sequences of unequal lengths.
func (p Problem) Keys(i int) (lo, hi int) {
	first, last := p.Band.Diagonals(p.QLen, p.KVLen)
	return clamp(i+first, p.KVLen), clamp(i+last+1, p.KVLen)
}

// Queries returns the range [lo, hi) of query rows that see key j. Neither end decreases as j
// grows. Seq.Queries serves sequences of unequal lengths.
func (p Problem) Queries(j int) (lo, hi int) {
	first, last := p.Band.Diagonals(p.QLen, p.KVLen)
	return clamp(j-last, p.QLen), clamp(j-first+1, p.QLen)
}

func clamp(x, limit int) int { return max(0, min(x, limit)) }
