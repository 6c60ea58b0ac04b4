package nn

// A LanguageModelConfig configures a LanguageModel.
type LanguageModelConfig struct {
	Vocabulary        int // number of tokens
	TransformerConfig     // of the Transformer; set Causal for a model that predicts the next token
}

// A LanguageModel predicts the next token: an embedding, a Transformer and a linear layer with a
// logit per token.
type LanguageModel struct {
	Embedding   *Embedding   // of Vocabulary tokens
	Transformer *Transformer // from embeddings to features of the same number
	Head        *Linear      // from features to logits, with a bias
}

// NewLanguageModel returns a model with the parameters embedding.weight, the Transformer's,
// head.weight and head.bias. An invalid config is an error of i.
func NewLanguageModel(i *Init, c LanguageModelConfig) *LanguageModel {
	return &LanguageModel{
		NewEmbedding(i.In("embedding"), c.Vocabulary, c.TransformerConfig.Embedding),
		NewTransformer(i, c.TransformerConfig),
		NewLinear(i.In("head"), c.TransformerConfig.Embedding, c.Vocabulary, true),
	}
}

// Params returns the parameters of the embedding, the Transformer and the head.
func (l *LanguageModel) Params() []*Param { return join(l.Embedding, l.Transformer, l.Head) }

// UseFlashAttention switches flash attention, initially on; see AttentionLayer.UseFlashAttention.
func (l *LanguageModel) UseFlashAttention(on bool) { l.Transformer.UseFlashAttention(on) }

// Forward returns the next token's logits for each token, [rows, Vocabulary].
func (l *LanguageModel) Forward(s *Step, tokens Tokens) Tensor {
	return l.Head.Forward(s, l.Transformer.Forward(s, l.Embedding.Forward(s, tokens)))
}

// Backward adds to the gradients of all parameters, for the gradient of the logits dy. Tokens have
// no gradient.
func (l *LanguageModel) Backward(s *Step, dy Tensor) {
	l.Embedding.Backward(s, l.Transformer.Backward(s, l.Head.Backward(s, dy)))
}

// NewCaches returns an empty cache for each layer, for batch sequences of at most SequenceLen
// tokens.
func (l *LanguageModel) NewCaches(batch int) ([]*KVCache, error) {
	return l.Transformer.NewCaches(batch)
}

// Decode returns the next token's logits for tokens that continue the cached sequences, in
// inference. It appends the tokens to the caches. After an error the cached sequences are lost:
// Reset the caches.
func (l *LanguageModel) Decode(s *Step, tokens Tokens, caches []*KVCache) Tensor {
	return l.Head.Forward(s, l.Transformer.Decode(s, l.Embedding.Forward(s, tokens), caches))
}
