package encoder

import "github.com/flashkit-go/flashkit/nn"

// A bert is an encoder of the BERT family, with layer norms after the residual sums (post-norm). It
// computes:
//
//	x = norm(word + type + position)
//	for each layer:
//		x = norm(x + attention(x Wqkv) Wout)
//		x = norm(x + act(x Wup) Wdown)
//
// Source: Devlin, Chang, Lee, Toutanova, BERT, 2019.
type bert struct {
	size       shape
	word, kind *nn.Embedding
	position   *nn.PositionalEmbedding
	norm       *nn.LayerNorm
	stack
}

// loadBERT reads a BertModel. A missing key has the default of transformers' BertConfig.
func loadBERT(c *config, w *nn.Init, p nn.Precision) (family, error) {
	vocab, hidden := c.integer("vocab_size", 30522, 1), c.integer("hidden_size", 768, 1)
	layers, heads := c.integer("num_hidden_layers", 12, 0), c.heads("num_attention_heads", 12, hidden)
	between := c.integer("intermediate_size", 3072, 1)
	positions, types := c.integer("max_position_embeddings", 512, 1), c.integer("type_vocab_size", 2, 1)
	eps, act := c.number("layer_norm_eps", 1e-12), c.activation("hidden_act", "gelu")
	c.Only("position_embedding_type", `"absolute"`)
	if err := c.Done(harmlessKeys...); err != nil {
		return nil, err
	}
	e := w.In("embeddings")
	m := &bert{
		size:     shape{hidden, vocab, positions, types, false},
		word:     nn.NewEmbedding(e.In("word_embeddings"), vocab, hidden),
		kind:     nn.NewEmbedding(e.In("token_type_embeddings"), types, hidden),
		position: nn.NewPositionalEmbedding(e.In("position_embeddings"), positions, hidden),
		norm:     newNorm(e.In("LayerNorm"), hidden, eps),
	}
	var err error
	m.layers, err = loadPostNorm(c, w, layers, hidden, heads, between, eps, act, p, bertNames)
	return m, err
}

func (m *bert) shape() shape { return m.size }

func (m *bert) embed(s *nn.Step, tokens, types nn.Tokens) nn.Tensor {
	start := s.Mark()
	x := s.Add(m.word.Forward(s, tokens), m.kind.Forward(s, types))
	return s.Keep(start, m.norm.Forward(s, m.position.Forward(s, x)))
}
