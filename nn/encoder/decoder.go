package encoder

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/nn"
)

// A decoder is a language model without its head, for embeddings. Its norms are RMSNorms, and several
// query heads share a KV head. It computes:
//
//	x = word
//	for each layer:
//		x = x + attention(rotated(normed heads of norm(x) Wqkv)) Wo
//		x = x + (act(y Wgate) * y Wup) Wdown                           y = norm(x)
//	x = norm(x)
//
// Gemma 3 also multiplies the embeddings by sqrt(hidden), and has a norm before each sum.
type decoder struct {
	size      shape
	scale     float32 // of the embeddings
	bothSides bool    // tokens see tokens on both sides
	word      *nn.Embedding
	stack
}

// A decoderConfig holds the keys of config.json.
type decoderConfig struct {
	size                            shape
	between, layers, heads, kv, dim int
	eps                             float64
	offset                          float32 // of norms
	bias                            bool    // of the attention's products
	act                             nn.Activation
	scale                           float32       // of scores
	kinds                           []bool        // whether a layer sees a window
	rotaries                        [2]*nn.Rotary // of layers that see all tokens, and a window
	bands                           [2]flashkit.Band
	sandwich                        bool   // a norm before each sum
	feedIn                          string // name of the norm before the feed-forward
	precision                       nn.Precision
}

// readHeads reads the numbers of heads.
func (m *decoderConfig) readHeads(c *config, heads, kv int) {
	m.heads, m.kv = c.integer("num_attention_heads", heads, 1), kv
	if c.Has("num_key_value_heads") {
		m.kv = c.integer("num_key_value_heads", kv, 1)
	} else if _, null := c.Raw("num_key_value_heads"); null {
		m.kv = m.heads
	}
	if m.heads%max(m.kv, 1) != 0 {
		c.Refuse("num_key_value_heads", "must divide num_attention_heads, %d", m.heads)
	}
	if m.dim%2 != 0 {
		c.Refuse("head_dim", "must be even")
	}
}

// windowOf returns the size of a window, or 0 for null.
func (c *config) windowOf(key string, otherwise int) int {
	if _, ok := c.Raw(key); ok && !c.Has(key) {
		return 0
	}
	return c.integer(key, otherwise, 1)
}

func (m *decoderConfig) load(c *config, w *nn.Init) (family, error) {
	x := &decoder{size: m.size, scale: 1, word: nn.NewEmbedding(w.In("embed_tokens"), m.size.vocab, m.size.hidden), stack: stack{last: m.norm(w.In("norm"), m.size.hidden)}}
	var err error
	x.layers, err = loadLayers(c, w, m.layers, func(k int) layer { return m.layer(w, k) })
	return x, err
}

func (m *decoderConfig) layer(w *nn.Init, k int) *block {
	in, hidden, kind := layerOf(w, "layers", k), m.size.hidden, 0
	if m.kinds[k] {
		kind = 1
	}
	linear := func(name string, from, to int, bias bool) *nn.Linear {
		return newLinear(in.In(name), from, to, bias, m.precision)
	}
	attention := func(name string, heads int) *nn.Linear { return linear("self_attn."+name, hidden, heads*m.dim, m.bias) }
	l := &block{
		attentionIn: m.norm(in.In("input_layernorm"), hidden), feedIn: m.norm(in.In(m.feedIn), hidden),
		qkv:   concat(w, attention("q_proj", m.heads), attention("k_proj", m.kv), attention("v_proj", m.kv)),
		qNorm: m.norm(in.In("self_attn.q_norm"), m.dim), kNorm: m.norm(in.In("self_attn.k_norm"), m.dim),
		out: linear("self_attn.o_proj", m.heads*m.dim, hidden, m.bias), rotary: m.rotaries[kind], attention: nn.NewMultiHeadAttention(m.heads),
		feed: nn.GatedFeedForward{Gate: linear("mlp.gate_proj", hidden, m.between, false), Up: linear("mlp.up_proj", hidden, m.between, false), Down: linear("mlp.down_proj", m.between, hidden, false)},
	}
	if m.sandwich {
		l.attentionOut, l.feedOut = m.norm(in.In("post_attention_layernorm"), hidden), m.norm(in.In("post_feedforward_layernorm"), hidden)
	}
	l.attention.KVHeads, l.attention.Scale, l.attention.Band, l.feed.Gate.Activation = m.kv, m.scale, m.bands[kind], m.act
	return l
}

func (m *decoderConfig) norm(w *nn.Init, features int) *nn.RMSNorm {
	return newRMSNorm(w, features, m.eps, m.offset)
}

func (m *decoder) shape() shape { return m.size }

func (m *decoder) embed(s *nn.Step, tokens, _ nn.Tokens) nn.Tensor {
	x := m.word.Forward(s, tokens)
	if m.scale != 1 {
		for i := range x.Data {
			x.Data[i] *= m.scale
		}
	}
	return x
}

// decoderHead is the classifier of a language model, which reads the last token.
func decoderHead(_ *config, w *nn.Init, hidden, labels int) []stage {
	return []stage{&pool{by: []pooling{poolLast}}, &dense{linear: nn.NewLinear(w.In("score"), hidden, labels, false)}}
}

// padding returns the padding token. The classifier reads the last token before padding tokens, even
// if the text has these tokens.
func (m *decoder) padding(c *config) int32 {
	if !c.Has("pad_token_id") {
		c.Refuse("pad_token_id", "must be given, because the classifier reads the last token that is not padding")
		return -1
	}
	return int32(c.integer("pad_token_id", 0, 0))
}
