package nn

// An AttentionConfig configures an AttentionLayer. In the comments, "0:" precedes the meaning of 0.
// Heads and DimHead must be at least 1.
type AttentionConfig struct {
	QFeatures   int     // features of a row of q
	KFeatures   int     // features of a row of k; 0: QFeatures
	VFeatures   int     // features of a row of v; 0: QFeatures
	OutFeatures int     // features of a row of the result; 0: QFeatures
	Heads       int     // query heads
	KVHeads     int     // heads of k and v, a divisor of Heads; 0: Heads
	DimHead     int     // features of a head
	Dropout     float32 // probability of dropping an attention weight in training, in [0, 1)
	Causal      bool    // a query sees keys up to its own position
	Rotary      *Rotary // rotates q and k by position; nil for none
}

// An AttentionLayer normalizes q, k and v, and projects each of them to the features of the heads.
// It then computes attention with scale 1/sqrt(DimHead), and projects the result to OutFeatures.
// Projections have no bias.
type AttentionLayer struct {
	NormQ, NormK, NormV *LayerNorm          // norms of the inputs
	Q, K, V             *Linear             // projections of the normed inputs to the heads
	Out                 *Linear             // projection of the heads to the result
	Attention           *MultiHeadAttention // attention between the projections
}

// NewAttentionLayer returns a layer. Its parameters are norm_q.weight, norm_q.bias, norm_k.weight,
// norm_k.bias, norm_v.weight, norm_v.bias, q.weight, k.weight, v.weight and out.weight. After an
// invalid config, i.Err returns an error.
func NewAttentionLayer(i *Init, c AttentionConfig) *AttentionLayer {
	or := func(n, otherwise int) int {
		if n == 0 {
			return otherwise
		}
		return n
	}
	k, v, out, g := or(c.KFeatures, c.QFeatures), or(c.VFeatures, c.QFeatures), or(c.OutFeatures, c.QFeatures), or(c.KVHeads, c.Heads)
	if c.Heads < 1 || c.DimHead < 1 || g < 1 || c.Heads%g != 0 {
		i.Fail(problem("AttentionConfig.Heads", c.Heads, "must be at least 1 and a multiple of KVHeads = %d, and DimHead = %d at least 1", g, c.DimHead))
		c.Heads, g, c.DimHead = 1, 1, 0 // zero features make the projections invalid, so that they fail instead of running
	}
	if d := (&Dropout{c.Dropout}); d.check() != nil {
		i.Fail(d.check())
	}
	a := NewMultiHeadAttention(c.Heads)
	a.KVHeads, a.Causal, a.Dropout, a.Rotary = g, c.Causal, c.Dropout, c.Rotary
	return &AttentionLayer{
		NewLayerNorm(i.In("norm_q"), c.QFeatures), NewLayerNorm(i.In("norm_k"), k), NewLayerNorm(i.In("norm_v"), v),
		NewLinear(i.In("q"), c.QFeatures, c.Heads*c.DimHead, false), NewLinear(i.In("k"), k, g*c.DimHead, false),
		NewLinear(i.In("v"), v, g*c.DimHead, false), NewLinear(i.In("out"), c.Heads*c.DimHead, out, false), a,
	}
}

// Params returns the parameters of the norms, then of the projections.
func (l *AttentionLayer) Params() []*Param {
	return join(l.NormQ, l.NormK, l.NormV, l.Q, l.K, l.V, l.Out)
}

// UseFlashAttention switches flash attention on or off. Flash attention is initially on. Without
// flash attention, the layer computes and stores all attention weights. UseFlashAttention must not
// be called between Forward and Backward.
func (l *AttentionLayer) UseFlashAttention(on bool) { l.Attention.UseFlashAttention = on }

// Forward returns the layer's result, [rows of q, OutFeatures]. One tensor may be passed as q, k
// and v. k and v have the same Rows.
func (l *AttentionLayer) Forward(s *Step, q, k, v Tensor) Tensor {
	q, k, v = l.project(s, q, k, v)
	return l.Out.Forward(s, l.Attention.Forward(s, q, k, v))
}

// Decode returns Forward's result for rows x that continue the cached sequences. It appends the
// keys and values of x to the cache, and attends to the whole cache. The cache has KVHeads heads of
// DimHead features. Decode is for inference.
func (l *AttentionLayer) Decode(s *Step, x Tensor, cache *KVCache) Tensor {
	q, k, v := l.project(s, x, x, x)
	return l.Out.Forward(s, l.Attention.Decode(s, q, k, v, cache))
}

func (l *AttentionLayer) project(s *Step, q, k, v Tensor) (_, _, _ Tensor) {
	q = l.Q.Forward(s, l.NormQ.Forward(s, q))
	k = l.K.Forward(s, l.NormK.Forward(s, k))
	v = l.V.Forward(s, l.NormV.Forward(s, v))
	return q, k, v
}

// Backward returns the gradients of q, k and v, given dy, the gradient of Forward's result. If one
// tensor was passed for several of q, k and v, the tensor's gradient is the sum of the matching
// results.
func (l *AttentionLayer) Backward(s *Step, dy Tensor) (dq, dk, dv Tensor) {
	dq, dk, dv = l.Attention.Backward(s, l.Out.Backward(s, dy))
	dv = l.NormV.Backward(s, l.V.Backward(s, dv))
	dk = l.NormK.Backward(s, l.K.Backward(s, dk))
	dq = l.NormQ.Backward(s, l.Q.Backward(s, dq))
	return dq, dk, dv
}

func join(layers ...interface{ Params() []*Param }) (list []*Param) {
	for _, l := range layers {
		list = append(list, l.Params()...)
	}
	return list
}
