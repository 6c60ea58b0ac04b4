package nn

import "strconv"

// A TransformerConfig configures a Transformer. All numbers but Dropout must be at least 1.
type TransformerConfig struct {
	Embedding   int     // features of a row
	Hidden      int     // features between the two linear layers
	Layers      int     // number of layers
	Heads       int     // attention heads
	DimHead     int     // features of a head
	Dropout     float32 // probability of every dropout, also of attention weights, in [0, 1)
	Causal      bool    // a query sees keys up to its own position
	TimeFirst   bool    // rows are [T, batch], as in PyTorch with batch_first=False
	SequenceLen int     // the most rows of a sequence
}

// A TransformerLayer is attention, then two linear layers. It sets x to x + dropout(attention(x)),
// and then to x + dropout(linear2(dropout(relu(linear1(norm(x)))))). The attention normalizes its
// input rows.
type TransformerLayer struct {
	Attention *AttentionLayer // first normalizes its rows
	Norm      *LayerNorm      // norm of the rows after attention
	Linear1   *Linear         // from Embedding to Hidden features, with ReLU
	Linear2   *Linear         // from Hidden to Embedding features
	Dropout   Dropout         // of the results of Attention, Linear1 and Linear2
}

// NewTransformerLayer returns one layer of a Transformer with config c. Parameter names begin with
// attention, norm, linear1 and linear2. NewTransformerLayer ignores c.Layers, c.TimeFirst and
// c.SequenceLen. After an invalid config, i.Err returns an error.
func NewTransformerLayer(i *Init, c TransformerConfig) *TransformerLayer {
	l := &TransformerLayer{
		NewAttentionLayer(i.In("attention"), AttentionConfig{QFeatures: c.Embedding, Heads: c.Heads, DimHead: c.DimHead, Dropout: c.Dropout, Causal: c.Causal}),
		NewLayerNorm(i.In("norm"), c.Embedding),
		NewLinear(i.In("linear1"), c.Embedding, c.Hidden, true),
		NewLinear(i.In("linear2"), c.Hidden, c.Embedding, true),
		Dropout{c.Dropout},
	}
	l.Linear1.Activation = ReLU
	return l
}

// Params returns the parameters of the attention, the norm and the linear layers.
func (l *TransformerLayer) Params() []*Param {
	return join(l.Attention, l.Norm, l.Linear1, l.Linear2)
}

// UseFlashAttention switches flash attention on or off. See AttentionLayer.UseFlashAttention.
func (l *TransformerLayer) UseFlashAttention(on bool) { l.Attention.UseFlashAttention(on) }

// Forward returns the layer's result, [rows, Embedding], for x of the same shape.
func (l *TransformerLayer) Forward(s *Step, x Tensor) Tensor {
	m := s.Mark()
	x = s.Add(x, l.Dropout.Forward(s, l.Attention.Forward(s, x, x, x)))
	return s.Keep(m, l.feedForward(s, x))
}

// Decode returns Forward's result for rows x that continue the cached sequences. It appends the
// keys and values of x to the cache. Decode is for inference.
func (l *TransformerLayer) Decode(s *Step, x Tensor, cache *KVCache) Tensor {
	m := s.Mark()
	x = s.Add(x, l.Attention.Decode(s, x, cache))
	return s.Keep(m, l.feedForward(s, x))
}

func (l *TransformerLayer) feedForward(s *Step, x Tensor) Tensor {
	h := l.Linear1.Forward(s, l.Norm.Forward(s, x))
	h = l.Dropout.Forward(s, h)
	if l.Dropout.P == 0 || !s.train {
		return l.Linear2.ForwardAdd(s, h, x)
	}
	return s.Add(x, l.Dropout.Forward(s, l.Linear2.Forward(s, h)))
}

// Backward returns the gradient of x, given dy, the gradient of Forward's result.
func (l *TransformerLayer) Backward(s *Step, dy Tensor) Tensor {
	m := s.Mark()
	dh := l.Linear2.Backward(s, l.Dropout.Backward(s, dy))
	dh = l.Linear1.Backward(s, l.Dropout.Backward(s, dh))
	dx := s.Add(dy, l.Norm.Backward(s, dh))
	dq, dk, dv := l.Attention.Backward(s, l.Dropout.Backward(s, dx))
	return s.Keep(m, s.Add(dx, dq, dk, dv))
}

// A Transformer adds a learned positional embedding, then applies its layers in order.
type Transformer struct {
	Positions *PositionalEmbedding // embedding of SequenceLen positions
	Layers    []*TransformerLayer  // in the order of Forward

	config TransformerConfig
}

// NewTransformer returns a Transformer. Its parameters are positions.weight and the parameters of
// the layers. The names of the layers' parameters begin with layers.0, layers.1 and so on. After an
// invalid config, i.Err returns an error.
func NewTransformer(i *Init, c TransformerConfig) *Transformer {
	l := &Transformer{Positions: NewPositionalEmbedding(i.In("positions"), c.SequenceLen, c.Embedding), config: c}
	if c.Layers < 1 {
		i.Fail(problem("TransformerConfig.Layers", c.Layers, "must be at least 1"))
	}
	for n := 0; n < c.Layers && i.Err() == nil; n++ {
		l.Layers = append(l.Layers, NewTransformerLayer(i.In("layers").In(strconv.Itoa(n)), c))
	}
	return l
}

// Params returns the weight of Positions, then the parameters of the layers.
func (l *Transformer) Params() []*Param {
	list := l.Positions.Params()
	for _, layer := range l.Layers {
		list = append(list, layer.Params()...)
	}
	return list
}

// UseFlashAttention switches flash attention on or off. See AttentionLayer.UseFlashAttention.
func (l *Transformer) UseFlashAttention(on bool) {
	for _, layer := range l.Layers {
		layer.UseFlashAttention(on)
	}
}

// Forward returns the last layer's result, [rows, Embedding], for x of the same shape. Sequences
// have at most SequenceLen rows.
func (l *Transformer) Forward(s *Step, x Tensor) Tensor {
	x.TimeFirst = x.TimeFirst || l.config.TimeFirst
	x = l.Positions.Forward(s, x)
	for _, layer := range l.Layers {
		x = layer.Forward(s, x)
	}
	return x
}

// Backward returns the gradient of x, given dy, the gradient of Forward's result.
func (l *Transformer) Backward(s *Step, dy Tensor) Tensor {
	dy.TimeFirst = dy.TimeFirst || l.config.TimeFirst
	for n := len(l.Layers) - 1; n >= 0; n-- {
		dy = l.Layers[n].Backward(s, dy)
	}
	return l.Positions.Backward(s, dy)
}

// NewCaches returns one empty cache per layer. Each cache has room for SequenceLen rows in each
// sequence. batch is the number of sequences.
func (l *Transformer) NewCaches(batch int) ([]*KVCache, error) {
	list := make([]*KVCache, len(l.Layers))
	for n := range list {
		c, err := NewKVCache(KVCacheConfig{Batch: batch, Heads: l.config.Heads, Capacity: l.config.SequenceLen, Dim: l.config.DimHead})
		if err != nil {
			return nil, err
		}
		list[n] = c
	}
	return list, nil
}

// Decode returns Forward's result for rows x that continue the cached sequences. caches must be the
// result of NewCaches. Each layer appends its keys and values to its cache. After an error the
// caches may be inconsistent, so a program must Reset them. Decode is for inference.
func (l *Transformer) Decode(s *Step, x Tensor, caches []*KVCache) Tensor {
	if len(caches) != len(l.Layers) || len(caches) == 0 || caches[0] == nil {
		s.Fail(problem("Transformer: caches.len", len(caches), "must be those of NewCaches, for %d layers", len(l.Layers)))
		return Tensor{}
	}
	x.TimeFirst = x.TimeFirst || l.config.TimeFirst
	x = l.Positions.ForwardFrom(s, x, caches[0].next)
	for n, layer := range l.Layers {
		x = layer.Decode(s, x, caches[n])
	}
	return x
}
