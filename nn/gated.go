package nn

// A GatedFeedForward computes Down(act(Gate x) * Up x) for each row x. act is Gate.Activation. With
// GELU it is known as GeGLU, with SiLU as SwiGLU.
//
// Source: Shazeer, GLU variants improve transformer, 2020.
type GatedFeedForward struct {
	Gate, Up *Linear // from the features of a row to the hidden features
	Down     *Linear // from the hidden features to the features of a row
}

// Params returns the parameters of Gate, Up and Down.
func (l *GatedFeedForward) Params() []*Param { return join(l.Gate, l.Up, l.Down) }

// Forward returns Down(act(Gate x) * Up x), [rows, features], for x of the same shape.
func (l *GatedFeedForward) Forward(s *Step, x Tensor) Tensor {
	if !s.train {
		y := s.NewTensor(x.Rows, l.Down.out)
		l.ForwardInto(s, y, x, false)
		return y
	}
	gate := l.Gate.Forward(s, x)
	up := l.Up.Forward(s, x)
	if !s.accepts("GatedFeedForward", "up", &up, gate.Features, &gate.Rows) {
		return Tensor{}
	}
	hidden := s.NewTensor(gate.Rows, gate.Features)
	s.times(hidden, gate, up)
	s.Push(l, gate)
	s.Push(l, up)
	return l.Down.Forward(s, hidden)
}

// partRows is the number of rows that ForwardInto computes at a time. Their hidden features take
// little memory, and products of more rows are not faster.
const partRows = 1024

// ForwardInto sets y, [rows, features], to Forward's result. If add is true, it adds the result to
// y, which may be x. Hidden features take memory for at most 1,024 rows.
// ForwardInto is for inference and fails in training.
func (l *GatedFeedForward) ForwardInto(s *Step, y, x Tensor, add bool) {
	if !s.accepts("GatedFeedForward", "x", &x, 0, nil) || !s.accepts("GatedFeedForward", "y", &y, 0, &x.Rows) {
		return
	}
	for from := 0; from < x.Count() && s.ok(nil); from += partRows {
		n, start := min(partRows, x.Count()-from), s.Mark()
		part := x.Part(from, n)
		gate, up := s.NewTensor(part.Rows, l.Gate.out), s.NewTensor(part.Rows, l.Up.out)
		l.Gate.ForwardInto(s, gate, part, false)
		l.Up.ForwardInto(s, up, part, false)
		if s.accepts("GatedFeedForward", "up", &up, gate.Features, nil) {
			s.times(gate, gate, up)
		}
		l.Down.ForwardInto(s, y.Part(from, n), gate, add)
		s.Keep(start, Tensor{})
	}
}

// Backward returns the gradient of x, given dy, the gradient of Forward's result.
func (l *GatedFeedForward) Backward(s *Step, dy Tensor) Tensor {
	dh := l.Down.Backward(s, dy)
	up := s.Pop(l)
	gate := s.Pop(l)
	if !s.accepts("GatedFeedForward", "dy", &dh, gate.Features, &gate.Rows) {
		return Tensor{}
	}
	dgate, dup := s.NewTensor(dh.Rows, dh.Features), s.NewTensor(dh.Rows, dh.Features)
	s.times(dgate, dh, up)
	s.times(dup, dh, gate)
	dx := l.Up.Backward(s, dup)
	return s.Add(l.Gate.Backward(s, dgate), dx)
}

// times sets y to the elementwise product of a and b. All have one shape, and y may be a or b.
func (s *Step) times(y, a, b Tensor) {
	if !s.ok(nil) {
		return
	}
	w := s.startRows(a.Count(), timesRows)
	w.x, w.y, w.z = a, b, y
	s.runRows(a.Features)
}

func timesRows(w *rowWork, _, from, to int) {
	for i := from; i < to; i++ {
		a, b, y := w.x.Row(i), w.y.Row(i), w.z.Row(i)
		b, y = b[:len(a)], y[:len(a)]
		for j, v := range a {
			y[j] = v * b[j]
		}
	}
}
