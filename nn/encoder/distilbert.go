package encoder

import "github.com/flashkit-go/flashkit/nn"

// A distilbert is an encoder like BERT, without token types.
//
// Source: Sanh, Debut, Chaumond, Wolf, DistilBERT, 2019.
type distilbert struct {
	size     shape
	word     *nn.Embedding
	position *nn.PositionalEmbedding
	norm     *nn.LayerNorm
	stack
}

var distilbertNames = postNormNames{
	"transformer.layer", "attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin",
	"sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm",
}

// loadDistilBERT reads a DistilBertModel. A missing key has the default of transformers'
// DistilBertConfig.
func loadDistilBERT(c *config, w *nn.Init, p nn.Precision) (family, error) {
	const eps = 1e-12
	vocab, hidden := c.integer("vocab_size", 30522, 1), c.integer("dim", 768, 1)
	layers, heads := c.integer("n_layers", 6, 0), c.heads("n_heads", 12, hidden)
	between, positions := c.integer("hidden_dim", 3072, 1), c.integer("max_position_embeddings", 512, 1)
	act := c.activation("activation", "gelu")
	c.Ignore("dropout", "attention_dropout", "qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds") // the file has the positions' weights
	if err := c.Done(harmlessKeys...); err != nil {
		return nil, err
	}
	e := w.In("embeddings")
	m := &distilbert{
		size:     shape{hidden, vocab, positions, 0, false},
		word:     nn.NewEmbedding(e.In("word_embeddings"), vocab, hidden),
		position: nn.NewPositionalEmbedding(e.In("position_embeddings"), positions, hidden),
		norm:     newNorm(e.In("LayerNorm"), hidden, eps),
	}
	var err error
	m.layers, err = loadPostNorm(c, w, layers, hidden, heads, between, eps, act, p, distilbertNames)
	return m, err
}

func (m *distilbert) shape() shape { return m.size }

func (m *distilbert) embed(s *nn.Step, tokens, _ nn.Tokens) nn.Tensor {
	start := s.Mark()
	return s.Keep(start, m.norm.Forward(s, m.position.Forward(s, m.word.Forward(s, tokens))))
}

// distilbertHead is DistilBertForSequenceClassification.
func distilbertHead(_ *config, w *nn.Init, hidden, labels int) []stage {
	dense := &dense{linear: nn.NewLinear(w.In("pre_classifier"), hidden, hidden, true), function: functions["ReLU"]}
	return []stage{firstToken(), dense, logits(w.In("classifier"), hidden, labels)}
}
