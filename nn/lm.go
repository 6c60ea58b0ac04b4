package nn

// A LanguageModelConfig configures a LanguageModel.
type LanguageModelConfig struct {
	Vocabulary int // number of tokens
	TransformerConfig
}

// A LanguageModel predicts the next token: an embedding, a Transformer and a linear layer with a
// logit per token.
type LanguageModel struct {
	Embedding   *Embedding
	Transformer *Transformer
	Head        *Linear
}

// NewLanguageModel returns a model with the parameters embedding.weight, the Transformer's,
// head.weight and head.bias.
func NewLanguageModel(i *Init, c LanguageModelConfig) *LanguageModel {
	return &LanguageModel{
		NewEmbedding(i.In("embedding"), c.Vocabulary, c.TransformerConfig.Embedding),
		NewTransformer(i, c.TransformerConfig),
		NewLinear(i.In("head"), c.TransformerConfig.Embedding, c.Vocabulary, true),
	}
}

// Params returns the parameters of the embedding, the Transformer and the head.
func (l *LanguageModel) Params() []*Param { return join(l.Embedding, l.Transformer, l.Head) }

// UseFlashAttention switches flash attention, initially on.
func (l *LanguageModel) UseFlashAttention(on bool) { l.Transformer.UseFlashAttention(on) }

// Forward returns the next token's logits for each token, [rows, Vocabulary].
func (l *LanguageModel) Forward(s *Step, tokens Tokens) Tensor {
	return l.Head.Forward(s, l.Transformer.Forward(s, l.Embedding.Forward(s, tokens)))
}

// Backward takes the gradient of the logits.
func (l *LanguageModel) Backward(s *Step, dy Tensor) {
	l.Embedding.Backward(s, l.Transformer.Backward(s, l.Head.Backward(s, dy)))
}

// NewCaches returns an empty cache for each layer, of batch sequences.
func (l *LanguageModel) NewCaches(batch int) ([]*KVCache, error) {
	return l.Transformer.NewCaches(batch)
}

// Decode is Forward in inference for tokens that continue the cached sequences; it appends them to
// the caches. After an error the caches are unusable.
func (l *LanguageModel) Decode(s *Step, tokens Tokens, caches []*KVCache) Tensor {
	return l.Head.Forward(s, l.Transformer.Decode(s, l.Embedding.Forward(s, tokens), caches))
}
