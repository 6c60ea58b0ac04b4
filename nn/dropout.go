package nn

import "github.com/flashkit-go/flashkit/internal/philox"

// In training a Dropout sets elements to 0 with probability P and multiplies the other elements by
// 1/(1-P). In inference it does nothing. The choice of elements depends on the seed and step number
// of BeginTraining, the number of preceding dropouts in the pass, and the element's position.
type Dropout struct {
	P float32 // probability in [0, 1), rounded to a multiple of 2^-16
}

// Forward returns x, [rows, features], with elements dropped. In inference, and if P is 0, it
// returns x itself.
func (l *Dropout) Forward(s *Step, x Tensor) Tensor {
	if !s.ok(l.check()) || !s.accepts("Dropout", "x", &x, 0, nil) || l.P == 0 || !s.train {
		return x
	}
	seed := s.nextSeed()
	s.push(record{owner: l, x: Tensor{Features: x.Features, Rows: x.Rows}, seed: seed})
	return l.drop(s, seed, x)
}

// Backward returns the gradient of x, given dy, the gradient of Forward's result. The gradient is 0
// where an element of x was dropped.
func (l *Dropout) Backward(s *Step, dy Tensor) Tensor {
	if !s.ok(l.check()) || l.P == 0 {
		return dy
	}
	r := s.pop(l)
	if !s.accepts("Dropout", "dy", &dy, r.x.Features, &r.x.Rows) {
		return Tensor{}
	}
	return l.drop(s, r.seed, dy)
}

// drop returns x with each element multiplied by 0 or 1/(1-P).
func (l *Dropout) drop(s *Step, seed uint64, x Tensor) Tensor {
	y := s.NewTensor(x.Rows, x.Features)
	w := s.startRows(x.Count(), dropRows)
	w.dropout, w.seed, w.x, w.y = l, seed, x, y
	s.runRows(4 * x.Features)
	return y
}

// dropRows applies the dropout mask to rows [from, to). One call of philox.Words gives the random
// numbers for eight elements.
func dropRows(w *rowWork, _, from, to int) {
	below, keep, key := philox.Below(w.dropout.P), philox.Keep(w.dropout.P), philox.Key(w.seed)
	var words [4]uint32
	for i := from; i < to; i++ {
		x, y, at := w.x.Row(i), w.y.Row(i), i*w.x.Features
		for j, v := range x {
			if n := at + j; n%8 == 0 || j == 0 {
				eight := uint64(n / 8)
				words = philox.Words([4]uint32{uint32(eight), uint32(eight >> 32)}, key)
			}
			y[j] = v * keep
			if philox.Dropped(words, at+j, below) {
				y[j] = 0
			}
		}
	}
}

func (l *Dropout) check() error {
	if !(l.P >= 0 && l.P < 1) {
		return problem("Dropout.P", l.P, "must be at least 0 and less than 1")
	}
	return nil
}
