package nn

import (
	"cmp"
	"errors"

	"github.com/flashkit-go/flashkit"
)

// A MultiHeadAttention computes softmax(Q K^T Scale) V for several heads. A row of a tensor has the
// features of all heads, concatenated. The layer has no parameters.
type MultiHeadAttention struct {
	Heads   int     // query heads
	KVHeads int     // heads of k and v, a divisor of Heads; 0 is Heads. Query head h reads KV head h / (Heads/KVHeads)
	Scale   float32 // softmax scale; 0 is 1/sqrt(features of a head)
	Dropout float32 // probability of dropping a weight in training, in [0, 1)
	Causal  bool    // a query sees keys up to its own position; the last query sees all keys
	Rotary  *Rotary // rotates q and k by position; nil for none

	// Band is the keys that a query sees, such as a window. The zero Band hides no key. With a Band,
	// Causal must be false.
	Band flashkit.Band

	// Precision is Float32 or BF16. BF16 rounds q, k, v, the result and, on some processors, the
	// attention weights to bf16. It is for Forward and ForwardBias, for inference with flash attention.
	Precision Precision

	// SharedPrefix makes Decode read the pages that all sequences of the cache share only once, for all
	// of them. These are the leading full pages of forks. The results are equal up to rounding.
	SharedPrefix bool

	// UseFlashAttention selects the Dispatcher's kernels, whose memory is proportional to T.
	// Otherwise the layer stores all attention weights, [batch, Heads, T of q, T of k].
	// UseFlashAttention must not change between Forward and Backward.
	UseFlashAttention bool
}

// NewMultiHeadAttention returns flash attention with the given number of heads. A caller sets other
// options in the fields.
func NewMultiHeadAttention(heads int) *MultiHeadAttention {
	return &MultiHeadAttention{Heads: heads, UseFlashAttention: true}
}

// Forward returns the attention of q over k and v. A head of q or k has d features. A head of v has
// e features. The shapes are q [rows, Heads * d], k [keys, KVHeads * d], v [keys, KVHeads * e] and
// result [rows, Heads * e]. One tensor may be passed for several of q, k and v. k and v have the
// same Rows. q, k and v have the same Batch. The sequences of k may be longer or shorter than the
// sequences of q.
func (m *MultiHeadAttention) Forward(s *Step, q, k, v Tensor) Tensor {
	y, _ := m.forward(s, q, k, v)
	return y
}

// ForwardWeights returns Forward's result and the attention weights before dropout, [batch, Heads,
// T of q, T of k], in the Step's memory. With flash attention, which does not store the weights,
// ForwardWeights fails.
func (m *MultiHeadAttention) ForwardWeights(s *Step, q, k, v Tensor) (y Tensor, weights []float32) {
	if m.UseFlashAttention {
		s.Fail(errors.New("nn: flash attention has no weights to return: set UseFlashAttention to false"))
	}
	return m.forward(s, q, k, v)
}

// ForwardBias is Forward with a bias that is added to the scores, [Heads, T of q, T of k]. All
// sequences have the same bias: it depends on a row and a key by their numbers within the sequence.
// ForwardBias is for inference with flash attention.
func (m *MultiHeadAttention) ForwardBias(s *Step, q, k, v Tensor, bias []float32) Tensor {
	if !m.accepts(s, &q, &k, &v) {
		return Tensor{}
	}
	switch n := m.Heads * q.T * k.T; {
	case s.train || !m.UseFlashAttention || m.Rotary != nil:
		s.Fail(errors.New("nn: ForwardBias is for inference with flash attention, without Rotary"))
		return Tensor{}
	case len(bias) != n:
		s.Fail(problem("MultiHeadAttention: bias.len", len(bias), "must be Heads * T of q * T of k = %d", n))
		return Tensor{}
	}
	y := s.NewTensor(q.Rows, v.Features/m.kvHeads()*m.Heads)
	if q.Count() == 0 || k.Count() == 0 || !s.ok(nil) {
		clear(y.Data)
		return y
	}
	p := m.problemOf(s, &q, &k, &v, &y)
	p.Score.Bias = true
	s.args.Bias = flashkit.F32(bias, 1, m.Heads, q.T, k.T)
	m.attend(s, p, &q, &k, &v, &y)
	return y
}

func (m *MultiHeadAttention) forward(s *Step, q, k, v Tensor) (y Tensor, kept []float32) {
	if !m.accepts(s, &q, &k, &v) {
		return Tensor{}, nil
	}
	if m.Rotary != nil {
		q, k = m.Rotary.Forward(s, q, m.Heads), m.Rotary.Forward(s, k, m.kvHeads())
	}
	if !s.ok(nil) {
		return Tensor{}, nil
	}
	y = s.NewTensor(q.Rows, v.Features/m.kvHeads()*m.Heads)
	r := record{owner: m}
	if s.train && m.Dropout > 0 {
		r.seed = s.nextSeed()
	}
	p := m.problemOf(s, &q, &k, &v, &y)
	s.args.Seed = r.seed
	switch {
	case !m.UseFlashAttention:
		kept = s.take(p.Batch * p.Heads * p.QLen * p.KVLen)
		s.plainForward(p, kept)
	case s.train:
		kept = s.take(q.Count() * m.Heads)
		lse := Tensor{Data: kept, Features: m.Heads, Rows: q.Rows}
		s.args.LSE = lse.heads(m.Heads)
		s.ok(s.engine.training.Forward(s.ctx, p, &s.args))
	default:
		m.attend(s, p, &q, &k, &v, &y)
	}
	s.Push(m, q)
	s.Push(m, k)
	s.Push(m, v)
	s.Push(m, y)
	r.x.Data = kept
	s.push(r)
	return y, kept
}

// Backward returns the gradients of q, k and v, given dy, the gradient of Forward's result.
func (m *MultiHeadAttention) Backward(s *Step, dy Tensor) (dq, dk, dv Tensor) {
	r := s.pop(m)
	y, v, k, q := s.Pop(m), s.Pop(m), s.Pop(m), s.Pop(m)
	if !s.ok(nil) || !s.accepts("MultiHeadAttention", "dy", &dy, y.Features, &y.Rows) || !m.accepts(s, &q, &k, &v) {
		return Tensor{}, Tensor{}, Tensor{}
	}
	dq, dk, dv = s.NewTensor(q.Rows, q.Features), s.NewTensor(k.Rows, k.Features), s.NewTensor(v.Rows, v.Features)
	if !s.ok(nil) {
		return Tensor{}, Tensor{}, Tensor{}
	}
	p, g := m.problemOf(s, &q, &k, &v, &y), m.kvHeads()
	s.args.Seed = r.seed
	s.args.DO, s.args.DQ, s.args.DK, s.args.DV = dy.heads(m.Heads), dq.heads(m.Heads), dk.heads(g), dv.heads(g)
	if m.UseFlashAttention {
		lse := Tensor{Data: r.x.Data, Features: m.Heads, Rows: q.Rows}
		s.args.LSE = lse.heads(m.Heads)
		s.ok(s.engine.training.Backward(s.ctx, p, &s.args))
	} else {
		s.plainBackward(p, r.x.Data)
	}
	if m.Rotary != nil {
		dq, dk = m.Rotary.Backward(s, dq, m.Heads), m.Rotary.Backward(s, dk, g)
	}
	return dq, dk, dv
}

// Decode appends k and v to the cache and returns the attention of q over the whole cache. k and v
// have the same Rows as q. These Rows must not be packed. If Rotary is set, q and k are first
// rotated by position. If the cache has a Rotary, q is rotated by it, and the cache rotates k. With
// Causal, the last query of each sequence sees all keys. Decode fails in training.
func (m *MultiHeadAttention) Decode(s *Step, q, k, v Tensor, cache *KVCache) Tensor {
	if !m.accepts(s, &q, &k, &v) || !s.ok(m.checkDecode(s, &q, &k, &v, cache)) {
		return Tensor{}
	}
	if r := m.Rotary; r != nil {
		k = r.ForwardFrom(s, k, m.kvHeads(), cache.next)
	}
	if r := cmp.Or(m.Rotary, cache.config.Rotary); r != nil {
		q = r.ForwardFrom(s, q, m.Heads, cache.next)
	}
	if !s.ok(nil) || !s.ok(cache.Append(k, v)) {
		return Tensor{}
	}
	y := s.NewTensor(q.Rows, v.Features/m.kvHeads()*m.Heads)
	p := m.problemOf(s, &q, &k, &v, &y)
	p.KVLen, p.Ragged = cache.config.Capacity, true // not the current length: a constant problem lets the Dispatcher reuse its plan
	p.Page, p.Int8Group = cache.config.Page, cache.config.int8Group()
	if p.Int8Group == 0 {
		p.KVDType = cache.config.DType
	}
	lens := s.seqs.QLens
	s.seqs, s.prefix.Len = cache.Sequences(), 0
	if m.SharedPrefix {
		s.prefix, s.seqs = cache.Prefix()
		p.KVLen -= s.prefix.Len
	}
	s.seqs.QLens, s.args.Seqs = lens, &s.seqs
	s.args.K, s.args.V = cache.View()
	s.args.KScale, s.args.VScale = cache.Scales()
	switch {
	case s.prefix.Len > 0:
		s.ok(s.engine.attention.ForwardPrefix(s.ctx, p, &s.prefix, &s.args))
	case m.UseFlashAttention:
		s.ok(s.engine.attention.Forward(s.ctx, p, &s.args))
	default:
		s.plainForward(p, s.take(p.Batch*p.Heads*p.QLen*p.KVLen))
	}
	return y
}

func (m *MultiHeadAttention) checkDecode(s *Step, q, k, v *Tensor, c *KVCache) error {
	switch {
	case s.train:
		return trainingError("Decode")
	case m.Precision != Float32:
		return problem("MultiHeadAttention.Precision", uint8(m.Precision), "must be Float32 for Decode")
	case c == nil:
		return problem("MultiHeadAttention: cache", "nil", "must be given")
	case q.Starts != nil || !q.Rows.equal(&k.Rows):
		return problem("MultiHeadAttention: q.Rows", q.Rows, "must be those of k, and not packed")
	case k.Features != c.config.Heads*c.config.Dim || v.Features != k.Features || m.kvHeads() != c.config.Heads:
		return problem("MultiHeadAttention: k.Features", k.Features, "must equal the features of v and of the cache's %d heads of %d", c.config.Heads, c.config.Dim)
	case m.Rotary != nil && c.config.Rotary != nil:
		return problem("MultiHeadAttention.Rotary", "given", "must not stand beside KVCacheConfig.Rotary: keys are rotated once")
	case m.SharedPrefix && c.config.DType == flashkit.Int8:
		return problem("MultiHeadAttention.SharedPrefix", true, "does not support a cache of i8")
	case !m.UseFlashAttention && (c.config.Page > 0 || c.config.DType != flashkit.Float32):
		return problem("MultiHeadAttention.UseFlashAttention", false, "does not support a cache with pages or of %v", c.config.DType)
	}
	return nil
}

// problemOf returns the Problem of attention with output y. It sets s.args to the tensors.
func (m *MultiHeadAttention) problemOf(s *Step, q, k, v, y *Tensor) flashkit.Problem {
	g := m.kvHeads()
	p := flashkit.Problem{Batch: q.Batch, Heads: m.Heads, KVHeads: g, QLen: q.T, KVLen: k.T,
		Dim: q.Features / m.Heads, VDim: v.Features / g, Scale: m.Scale}
	if p.Band = m.Band; m.Causal {
		p.Band = flashkit.Causal()
	}
	if s.train {
		p.Score.Dropout = m.Dropout
	}
	s.args = flashkit.Args{Q: q.heads(m.Heads), K: k.heads(g), V: v.heads(g), O: y.heads(m.Heads), Workers: s.Workers}
	s.seqs = flashkit.Sequences{QLens: q.Lens, QStarts: q.Starts, KVLens: k.Lens, KVStarts: k.Starts}
	if q.Lens != nil || q.Starts != nil || k.Lens != nil || k.Starts != nil {
		p.Ragged, s.args.Seqs = true, &s.seqs
	}
	return p
}

func (m *MultiHeadAttention) kvHeads() int {
	if m.KVHeads == 0 {
		return m.Heads
	}
	return m.KVHeads
}

// accepts reports whether q, k and v match the layer's heads and each other. If not, the Step
// fails.
func (m *MultiHeadAttention) accepts(s *Step, q, k, v *Tensor) bool {
	const layer = "MultiHeadAttention"
	g := m.kvHeads()
	switch {
	case m.Heads < 1:
		return s.ok(problem(layer+".Heads", m.Heads, "must be at least 1"))
	case g < 1 || m.Heads%g != 0:
		return s.ok(problem(layer+".KVHeads", m.KVHeads, "must divide Heads = %d, or be 0", m.Heads))
	case m.Causal && m.Band != flashkit.Band{}:
		return s.ok(problem(layer+".Band", m.Band, "must not stand beside Causal"))
	case !(m.Dropout >= 0 && m.Dropout < 1):
		return s.ok(problem(layer+".Dropout", m.Dropout, "must be at least 0 and less than 1"))
	case !s.ok(m.checkPrecision(s)):
		return false
	case !s.accepts(layer, "q", q, 0, nil) || !s.accepts(layer, "k", k, 0, nil) || !s.accepts(layer, "v", v, 0, &k.Rows):
		return false
	case q.Features%m.Heads != 0:
		return s.ok(problem(layer+": q.Features", q.Features, "must be a multiple of Heads = %d", m.Heads))
	case k.Features != q.Features/m.Heads*g:
		return s.ok(problem(layer+": k.Features", k.Features, "must be %d, for %d heads of %d", q.Features/m.Heads*g, g, q.Features/m.Heads))
	case v.Features%g != 0:
		return s.ok(problem(layer+": v.Features", v.Features, "must be a multiple of KVHeads = %d", g))
	case k.Batch != q.Batch:
		return s.ok(problem(layer+": k.Batch", k.Batch, "must be that of q, %d", q.Batch))
	}
	return s.ok(nil)
}
