package encoder

import "github.com/flashkit-go/flashkit/nn"

// A nomicBERT is an encoder with rotary attention and layer norms after the residual sums. It
// computes:
//
//	x = norm(word + type)
//	for each layer:
//		x = norm(x + attention(rotated(x Wqkv)) Wo)
//		x = norm(x + (act(x Wgate) * x Wup) Wdown)
//
// Source: Nussbaum et al., Nomic Embed: training a reproducible long context text embedder, 2024.
type nomicBERT struct {
	size       shape
	word, kind *nn.Embedding
	norm       *nn.LayerNorm
	stack
}

// A nomicConfig holds the keys of config.json. The file has the keys of transformers' NomicBertConfig, or
// of the code that was published with the first models, or both. A missing key has the default of
// NomicBertConfig.
type nomicConfig struct {
	vocab, hidden, between, layers, heads, dim, positions, types int
	eps, theta                                                   float64
	act                                                          nn.Activation
	rotary                                                       *nn.Rotary
	precision                                                    nn.Precision
}

func loadNomicBERT(c *config, w *nn.Init, p nn.Precision) (family, error) {
	m := nomicConfig{vocab: c.integer("vocab_size", 30528, 1), types: c.integer("type_vocab_size", 2, 1), precision: p}
	r := newConfigIn(c, "rotary")
	m.readFirst(c)
	if !c.Has("n_embd") || c.Has("hidden_size") {
		r = m.readToday(c)
	} else {
		c.heads("n_head", 12, m.hidden)
	}
	m.rotary = c.rotary(r, m.dim, m.positions, m.theta)
	if err := c.Done(harmlessKeys...); err != nil {
		return nil, err
	}
	x := &nomicBERT{
		size: shape{m.hidden, m.vocab, m.positions, m.types, true},
		word: nn.NewEmbedding(w.In("embeddings.word_embeddings"), m.vocab, m.hidden),
		kind: nn.NewEmbedding(w.In("embeddings.token_type_embeddings"), m.types, m.hidden),
		norm: newNorm(w.In("emb_ln"), m.hidden, m.eps),
	}
	var err error
	x.layers, err = loadLayers(c, w, m.layers, func(k int) layer { return m.layer(w, k) })
	return x, err
}

// readFirst reads the keys of the first models' code.
func (m *nomicConfig) readFirst(c *config) {
	m.hidden, m.between = c.integer("n_embd", c.integer("hidden_size", 768, 1), 1), c.integer("n_inner", 3072, 1)
	m.layers, m.positions = c.integer("n_layer", 12, 0), c.integer("n_positions", 2048, 1)
	m.heads, m.eps, m.act = c.integer("n_head", c.integer("num_attention_heads", 12, 1), 1), c.number("layer_norm_epsilon", 1e-12), nn.SiLU
	m.dim = m.hidden / max(m.heads, 1)
	c.Only("activation_function", `"swiglu"`)
	for _, key := range []string{"causal", "mlp_fc1_bias", "mlp_fc2_bias", "parallel_block", "prenorm", "qkv_proj_bias", "rotary_emb_interleaved",
		"scale_attn_by_inverse_layer_idx", "use_rms_norm"} {
		c.Only(key, "false")
	}
	c.Only("rotary_emb_fraction", "1", "1.0")
	c.Only("rotary_emb_scale_base", "null")
	c.Only("rotary_scaling_factor", "null")
	c.Only("scale_attn_weights", "true")
	c.Ignore("attn_pdrop", "embd_pdrop", "resid_pdrop", "dense_seq_output", "fused_bias_fc", "fused_dropout_add_ln", "last_layer_subset",
		"max_trained_positions", "pad_vocab_size_multiple", "parallel_block_tied_norm", "reorder_and_upcast_attn", "summary_activation",
		"summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "use_flash_attn", "use_xentropy")
	m.theta = c.positive("rotary_emb_base", 1000)
}

// readToday reads the keys of transformers and returns the rope parameters. The keys of the first
// models' code, if the file has them too, must agree. Of the positions, the larger number counts,
// unless the rope parameters depend on it.
func (m *nomicConfig) readToday(c *config) *config {
	first := *m
	m.hidden, m.between = c.integer("hidden_size", 768, 1), c.integer("intermediate_size", 3072, 1)
	m.layers, m.positions = c.integer("num_hidden_layers", 12, 0), c.integer("max_position_embeddings", 2048, 1)
	m.heads = c.integer("num_attention_heads", 12, 1)
	m.dim = m.hidden / max(m.heads, 1)
	if c.Has("head_dim") {
		m.dim = c.integer("head_dim", m.dim, 1)
	} else if m.hidden%max(m.heads, 1) != 0 {
		c.Refuse("num_attention_heads", "must divide the hidden size %d", m.hidden)
	}
	m.eps, m.act = c.number("layer_norm_eps", 1e-12), c.activation("hidden_act", "silu")
	r, theta := c.ropeOf(1000)
	m.theta = r.number("rope_theta", theta)
	if c.Has("n_positions") && r.text("rope_type", r.text("type", "default")) == "default" {
		m.positions = max(m.positions, first.positions)
	}
	for _, x := range []struct {
		key   string
		agree bool
	}{
		{"n_embd", first.hidden == m.hidden}, {"n_inner", first.between == m.between}, {"n_layer", first.layers == m.layers},
		{"n_head", first.heads == m.heads && first.dim == m.dim}, {"layer_norm_epsilon", first.eps == m.eps},
		{"activation_function", first.act == m.act}, {"rotary_emb_base", first.theta == m.theta},
	} {
		if c.Has(x.key) && !x.agree {
			c.Refuse(x.key, "must agree with the key of transformers for the same setting")
		}
	}
	return r
}

func (m *nomicConfig) layer(w *nn.Init, k int) *block {
	in, inner := layerOf(w, "encoder.layers", k), m.heads*m.dim
	linear := func(name string, from, to int) *nn.Linear {
		return newLinear(in.In(name), from, to, false, m.precision)
	}
	l := &block{
		qkv:       linear("attn.Wqkv", m.hidden, 3*inner),
		out:       linear("attn.out_proj", inner, m.hidden),
		after:     newNorm(in.In("norm1"), m.hidden, m.eps),
		afterFeed: newNorm(in.In("norm2"), m.hidden, m.eps),
		rotary:    m.rotary, attention: nn.NewMultiHeadAttention(m.heads),
		feed: nn.GatedFeedForward{Gate: linear("mlp.fc12", m.hidden, m.between), Up: linear("mlp.fc11", m.hidden, m.between), Down: linear("mlp.fc2", m.between, m.hidden)},
	}
	l.attention.KVHeads, l.feed.Gate.Activation = m.heads, m.act
	return l
}

func (m *nomicBERT) shape() shape { return m.size }

func (m *nomicBERT) embed(s *nn.Step, tokens, types nn.Tokens) nn.Tensor {
	x := m.word.Forward(s, tokens)
	start := s.Mark()
	s.AddTo(x, m.kind.Forward(s, types))
	s.Keep(start, nn.Tensor{})
	m.norm.Apply(s, x)
	return x
}
