package encoder

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/nn"
)

// A modernBERT is an encoder whose layers see all tokens or a window of tokens. Most layers see
// local_attention/2 tokens on each side. The other layers see all tokens, and rotate by another base.
// It computes:
//
//	x = norm(word)
//	for each layer:
//		x = x + attention(rotated(norm(x) Wqkv)) Wo     the first layer has no norm here
//		x = x + (act(y Wgate) * y Wup) Wdown            y = norm(x)
//	x = norm(x)
//
// Source: Warner et al., Smarter, better, faster, longer: a modern bidirectional encoder, 2024.
type modernBERT struct {
	size shape
	word *nn.Embedding
	in   *nn.LayerNorm
	stack
}

// A modernConfig holds the keys of config.json. A missing key has the default of transformers'
// ModernBertConfig.
type modernConfig struct {
	vocab, hidden, between, layers, heads, positions int
	eps                                              float64
	normBias, attentionBias, feedBias                bool
	act                                              nn.Activation
	kinds                                            []bool        // whether a layer sees a window
	rotaries                                         [2]*nn.Rotary // of layers that see all tokens, and a window
	side                                             int           // tokens of a window on each side
	precision                                        nn.Precision
}

func loadModernBERT(c *config, w *nn.Init, p nn.Precision) (family, error) {
	m := modernConfig{
		vocab: c.integer("vocab_size", 50368, 1), hidden: c.integer("hidden_size", 768, 1), between: c.integer("intermediate_size", 1152, 1),
		layers: c.integer("num_hidden_layers", 22, 0), positions: c.integer("max_position_embeddings", 8192, 1),
		eps: c.number("norm_eps", 1e-5), normBias: c.flag("norm_bias", false), attentionBias: c.flag("attention_bias", false),
		feedBias: c.flag("mlp_bias", false), act: c.activation("hidden_activation", "gelu"),
		side: c.integer("local_attention", 128, 0) / 2, precision: p,
	}
	m.heads = c.heads("num_attention_heads", 12, m.hidden)
	every := c.integer("global_attn_every_n_layers", 3, 1)
	m.kinds = c.layerKinds(m.layers, func(i int) bool { return i%max(every, 1) != 0 })
	c.Only("rope_scaling", "null")
	global, local := c.ropesOf()
	for i, r := range []*config{global, local} {
		theta := c.number([]string{"global_rope_theta", "local_rope_theta"}[i], []float64{160000, 10000}[i])
		m.rotaries[i] = c.rotary(r, m.hidden/max(m.heads, 1), m.positions, theta)
	}
	c.Ignore(harmlessModern...)
	if err := c.Done(harmlessKeys...); err != nil {
		return nil, err
	}
	x := &modernBERT{
		size: shape{rotary: true, hidden: m.hidden, vocab: m.vocab, positions: m.positions},
		word: nn.NewEmbedding(w.In("embeddings.tok_embeddings"), m.vocab, m.hidden),
		in:   m.norm(w.In("embeddings.norm")), stack: stack{last: m.norm(w.In("final_norm"))},
	}
	var err error
	x.layers, err = loadLayers(c, w, m.layers, func(k int) layer { return m.layer(w, k) })
	return x, err
}

// harmlessModern are keys that concern training, heads or the software.
var harmlessModern = []string{
	"initializer_cutoff_factor", "attention_dropout", "embedding_dropout", "mlp_dropout", "decoder_bias", "deterministic_flash_attn",
	"sparse_prediction", "sparse_pred_ignore_index", "reference_compile", "repad_logits_with_grad", "position_embedding_type",
	"classifier_pooling", "classifier_bias", "classifier_activation", "layer_norm_eps",
}

func (m *modernConfig) layer(w *nn.Init, k int) *block {
	in := layerOf(w, "layers", k)
	l := &block{
		qkv:    newLinear(in.In("attn.Wqkv"), m.hidden, 3*m.hidden, m.attentionBias, m.precision),
		out:    newLinear(in.In("attn.Wo"), m.hidden, m.hidden, m.attentionBias, m.precision),
		feedIn: m.norm(in.In("mlp_norm")), rotary: m.rotaries[0], attention: nn.NewMultiHeadAttention(m.heads),
	}
	if l.attention.KVHeads = m.heads; m.kinds[k] {
		l.rotary, l.attention.Band = m.rotaries[1], flashkit.Window(m.side, m.side)
	}
	if k > 0 {
		l.attentionIn = m.norm(in.In("attn_norm"))
	}
	l.feed.Gate, l.feed.Up = halves(w, newLinear(in.In("mlp.Wi"), m.hidden, 2*m.between, m.feedBias, m.precision))
	l.feed.Down = newLinear(in.In("mlp.Wo"), m.between, m.hidden, m.feedBias, m.precision)
	l.feed.Gate.Activation = m.act
	return l
}

// norm returns a layer norm, whose bias is 0 if the model has none.
func (m *modernConfig) norm(w *nn.Init) *nn.LayerNorm {
	if m.normBias {
		return newNorm(w, m.hidden, m.eps)
	}
	return &nn.LayerNorm{Weight: w.Constant("weight", 1, m.hidden), Bias: nn.Blank().Constant("bias", 0, m.hidden), Eps: float32(m.eps)}
}

func (m *modernBERT) shape() shape { return m.size }

func (m *modernBERT) embed(s *nn.Step, tokens, _ nn.Tokens) nn.Tensor {
	x := m.word.Forward(s, tokens)
	m.in.Apply(s, x)
	return x
}

// modernHead is ModernBertForSequenceClassification.
func modernHead(c *config, w *nn.Init, hidden, labels int) []stage {
	by := poolFirst
	if name := c.text("classifier_pooling", "cls"); name == "mean" {
		by = poolMean
	} else if name != "cls" {
		c.Refuse("classifier_pooling", "must be cls or mean")
	}
	stages := append([]stage{&pool{by: []pooling{by}}}, modernInner(c, w, hidden)...)
	return append(stages, logits(w.In("classifier"), hidden, labels))
}

// modernInner returns the stages before the last linear layer of a classifier.
func modernInner(c *config, w *nn.Init, hidden int) []stage {
	m := modernConfig{hidden: hidden, eps: c.number("norm_eps", 1e-5), normBias: c.flag("norm_bias", false)}
	inner := nn.NewLinear(w.In("head.dense"), hidden, hidden, c.flag("classifier_bias", false))
	inner.Activation = c.activation("classifier_activation", "gelu")
	return []stage{&dense{linear: inner}, layerNorm{m.norm(w.In("head.norm"))}}
}
