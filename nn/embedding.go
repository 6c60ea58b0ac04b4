package nn

import "fmt"

// An Embedding maps each token to a row of features.
type Embedding struct {
	Weight *Param // [tokens, features]

	tokens, features int
}

// NewEmbedding returns an Embedding for a vocabulary with the given number of tokens. Its parameter
// "weight" is initialized from the standard normal distribution.
func NewEmbedding(i *Init, tokens, features int) *Embedding {
	return &Embedding{i.Normal("weight", 1, tokens, features), tokens, features}
}

// Params returns the weight.
func (l *Embedding) Params() []*Param { return []*Param{l.Weight} }

// Forward returns the weight's row of each token, [rows, features]. An ID outside the vocabulary
// makes s fail. In training, x.IDs must not change before Backward.
func (l *Embedding) Forward(s *Step, x Tokens) Tensor {
	if !s.ok(l.Weight.check("Embedding.Weight", l.tokens, l.features)) || !s.ok(x.Rows.check("Tokens")) {
		return Tensor{}
	}
	if len(x.IDs) != x.Count() {
		s.Fail(problem("Tokens.IDs.len", len(x.IDs), "must be the number of rows, %d", x.Count()))
		return Tensor{}
	}
	y := s.NewTensor(x.Rows, l.features)
	for i, id := range x.IDs {
		if id < 0 || int(id) >= l.tokens {
			s.Fail(problem(fmt.Sprintf("Tokens.IDs[%d]", i), id, "must be from 0 to %d, as %s is of %d tokens", l.tokens-1, l.Weight.Name, l.tokens))
			return Tensor{}
		}
		copy(y.Row(i), l.Weight.Data[int(id)*l.features:][:l.features])
	}
	s.push(record{owner: l, ids: x.IDs})
	return y
}

// Backward adds dy, the gradient of Forward's result, to the weight's gradient. Tokens have no
// gradient.
func (l *Embedding) Backward(s *Step, dy Tensor) {
	ids := s.pop(l).ids
	if !s.ok(nil) || !s.accepts(l.Weight.Name, "dy", &dy, l.features, nil) {
		return
	}
	if dy.Count() != len(ids) {
		s.Fail(problem(l.Weight.Name+": dy.Rows", dy.Count(), "must be the number of tokens, %d", len(ids)))
		return
	}
	grad := l.Weight.grad()
	for i, id := range ids {
		add(grad[int(id)*l.features:][:l.features], dy.Row(i))
	}
}

// A PositionalEmbedding adds learned features to each row. These features depend on the row's
// position in its sequence.
type PositionalEmbedding struct {
	Weight *Param // [positions, features]

	positions, features int
}

// NewPositionalEmbedding returns a PositionalEmbedding for sequences whose number of rows is at
// most positions. Its parameter "weight" is initialized from the standard normal distribution.
func NewPositionalEmbedding(i *Init, positions, features int) *PositionalEmbedding {
	return &PositionalEmbedding{i.Normal("weight", 1, positions, features), positions, features}
}

// Params returns the weight.
func (l *PositionalEmbedding) Params() []*Param { return []*Param{l.Weight} }

// Forward returns x, [rows, features], plus the weight's row of each position. Padding rows are
// returned unchanged.
func (l *PositionalEmbedding) Forward(s *Step, x Tensor) Tensor {
	y := l.ForwardFrom(s, x, nil)
	s.Push(l, x)
	return y
}

// ForwardFrom returns Forward's result for continued sequences: the first row of sequence b has
// position from[b]. If from is nil, sequences start at position 0. ForwardFrom is for inference.
func (l *PositionalEmbedding) ForwardFrom(s *Step, x Tensor, from []int32) Tensor {
	if !s.ok(l.Weight.check("PositionalEmbedding.Weight", l.positions, l.features)) || !s.accepts(l.Weight.Name, "x", &x, l.features, nil) {
		return Tensor{}
	}
	if from != nil && len(from) != x.Batch {
		s.Fail(problem(l.Weight.Name+": from.len", len(from), "must be Batch = %d", x.Batch))
		return Tensor{}
	}
	y := s.NewTensor(x.Rows, l.features)
	for i := range x.Count() {
		copy(y.Row(i), x.Row(i))
	}
	for b := range x.Batch {
		first, n, step := x.sequence(b)
		at := start(from, b)
		if at < 0 || at > l.positions-n {
			s.Fail(problem(fmt.Sprintf("%s: rows of sequence %d", l.Weight.Name, b), n, "from position %d on are beyond the %d positions that there are", at, l.positions))
			return Tensor{}
		}
		for i := range n {
			add(y.Row(first+i*step), l.Weight.Data[(at+i)*l.features:][:l.features])
		}
	}
	return y
}

// Backward adds dy, the gradient of Forward's result, to the weight's gradient. It returns dy,
// which is also the gradient of x.
func (l *PositionalEmbedding) Backward(s *Step, dy Tensor) Tensor {
	x := s.Pop(l)
	if !s.ok(nil) || !s.accepts(l.Weight.Name, "dy", &dy, l.features, &x.Rows) {
		return Tensor{}
	}
	grad := l.Weight.grad()
	for b := range dy.Batch {
		first, n, step := dy.sequence(b)
		for i := range n {
			add(grad[i*l.features:][:l.features], dy.Row(first+i*step))
		}
	}
	return dy
}

func start(from []int32, b int) int {
	if from == nil {
		return 0
	}
	return int(from[b])
}
