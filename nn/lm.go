package nn

// A LanguageModelConfig configures a LanguageModel.
type LanguageModelConfig struct {
	Vocabulary        int // number of tokens
	TransformerConfig     // configures the Transformer; a model that predicts the next token needs Causal
}

// A LanguageModel predicts the next token. It is an embedding, a Transformer, and a linear layer
// that computes a logit for each token of the vocabulary.
type LanguageModel struct {
	Embedding   *Embedding   // embedding of Vocabulary tokens
	Transformer *Transformer // from embeddings to rows with the same number of features
	Head        *Linear      // from features to logits, with a bias
}

// NewLanguageModel returns a model. Its parameters are embedding.weight, the parameters of the
// Transformer, head.weight and head.bias. After an invalid config, i.Err returns an error.
func NewLanguageModel(i *Init, c LanguageModelConfig) *LanguageModel {
	return &LanguageModel{
		NewEmbedding(i.In("embedding"), c.Vocabulary, c.TransformerConfig.Embedding),
		NewTransformer(i, c.TransformerConfig),
		NewLinear(i.In("head"), c.TransformerConfig.Embedding, c.Vocabulary, true),
	}
}

// Params returns the parameters of the embedding, the Transformer and the head.
func (l *LanguageModel) Params() []*Param { return join(l.Embedding, l.Transformer, l.Head) }

// UseFlashAttention switches flash attention on or off. See AttentionLayer.UseFlashAttention.
func (l *LanguageModel) UseFlashAttention(on bool) { l.Transformer.UseFlashAttention(on) }

// Forward returns [rows, Vocabulary]: for each token, the logits of the next token.
func (l *LanguageModel) Forward(s *Step, tokens Tokens) Tensor {
	return l.Head.Forward(s, l.Transformer.Forward(s, l.Embedding.Forward(s, tokens)))
}

// Backward adds to the gradients of all parameters, given dy, the gradient of the logits. Tokens
// have no gradient.
func (l *LanguageModel) Backward(s *Step, dy Tensor) {
	l.Embedding.Backward(s, l.Transformer.Backward(s, l.Head.Backward(s, dy)))
}

// NewCaches returns one empty cache per layer. Each cache has room for SequenceLen tokens in each
// sequence. batch is the number of sequences.
func (l *LanguageModel) NewCaches(batch int) ([]*KVCache, error) {
	return l.Transformer.NewCaches(batch)
}

// Decode returns Forward's result for tokens that continue the cached sequences. It appends the
// tokens' keys and values to the caches. After an error the caches may be inconsistent, so a
// program must Reset them. Decode is for inference.
func (l *LanguageModel) Decode(s *Step, tokens Tokens, caches []*KVCache) Tensor {
	return l.Head.Forward(s, l.Transformer.Decode(s, l.Embedding.Forward(s, tokens), caches))
}
