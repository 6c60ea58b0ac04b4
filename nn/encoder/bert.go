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
	attention  *nn.MultiHeadAttention
	layers     []postNorm
}

// loadBERT reads a BertModel. A missing key has the default of transformers' BertConfig.
func loadBERT(c *config, w *nn.Init, p nn.Precision) (family, error) {
	vocab, hidden := c.integer("vocab_size", 30522, 1), c.integer("hidden_size", 768, 1)
	layers, heads := c.integer("num_hidden_layers", 12, 0), c.heads("num_attention_heads", 12, hidden)
	between := c.integer("intermediate_size", 3072, 1)
	positions, types := c.integer("max_position_embeddings", 512, 1), c.integer("type_vocab_size", 2, 1)
	eps, act := c.number("layer_norm_eps", 1e-12), c.activation("hidden_act", "gelu")
	c.only("position_embedding_type", `"absolute"`)
	if err := c.done(harmlessKeys...); err != nil {
		return nil, err
	}
	e := w.In("embeddings")
	m := &bert{
		size:      shape{hidden, vocab, positions, types},
		word:      nn.NewEmbedding(e.In("word_embeddings"), vocab, hidden),
		kind:      nn.NewEmbedding(e.In("token_type_embeddings"), types, hidden),
		position:  nn.NewPositionalEmbedding(e.In("position_embeddings"), positions, hidden),
		norm:      newNorm(e.In("LayerNorm"), hidden, eps),
		attention: nn.NewMultiHeadAttention(heads),
	}
	m.layers = loadPostNorm(w, layers, hidden, between, eps, act, p, bertNames)
	return m, packPostNorm(w, m.layers)
}

func (m *bert) shape() shape { return m.size }

func (m *bert) forward(s *nn.Step, tokens, types nn.Tokens) nn.Tensor {
	start := s.Mark()
	x := s.Add(m.word.Forward(s, tokens), m.kind.Forward(s, types))
	x = s.Keep(start, m.norm.Forward(s, m.position.Forward(s, x)))
	for i := range m.layers {
		x = m.layers[i].forward(s, start, m.attention, x)
	}
	return x
}

// A postNorm is a layer with layer norms after the residual sums.
type postNorm struct {
	qkv, out, up, down        *nn.Linear // the output features of qkv are the queries, the keys, then the values
	attentionNorm, outputNorm *nn.LayerNorm
}

// postNormNames are the names of a layer's tensors, without "weight" and "bias".
type postNormNames struct {
	layers                       string // the layers' common name, before their number
	query, key, value, out, norm string
	up, down, normDown           string
}

var bertNames = postNormNames{
	"encoder.layer", "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
	"attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
}

// loadPostNorm returns n layers.
func loadPostNorm(w *nn.Init, n, hidden, between int, eps float64, act nn.Activation, p nn.Precision, names postNormNames) []postNorm {
	var layers []postNorm
	for k := 0; k < n && w.Err() == nil; k++ {
		in := layerOf(w, names.layers, k)
		square := func(name string) *nn.Linear { return newLinear(in.In(name), hidden, hidden, true, p) }
		q, k, v := square(names.query), square(names.key), square(names.value)
		l := postNorm{
			out: square(names.out), attentionNorm: newNorm(in.In(names.norm), hidden, eps),
			up: newLinear(in.In(names.up), hidden, between, true, p), down: newLinear(in.In(names.down), between, hidden, true, p),
			outputNorm: newNorm(in.In(names.normDown), hidden, eps),
		}
		l.up.Activation, l.qkv = act, concat(w, q, k, v)
		layers = append(layers, l)
	}
	return layers
}

func packPostNorm(w *nn.Init, layers []postNorm) error {
	var products []*nn.Linear
	for _, l := range layers {
		products = append(products, l.qkv, l.out, l.up, l.down)
	}
	return pack(w, products)
}

func (l *postNorm) forward(s *nn.Step, start nn.Mark, attention *nn.MultiHeadAttention, x nn.Tensor) nn.Tensor {
	qkv, h := l.qkv.Forward(s, x), x.Features
	mixed := attention.Forward(s, qkv.Columns(0, h), qkv.Columns(h, h), qkv.Columns(2*h, h))
	x = s.Keep(start, l.attentionNorm.Forward(s, l.out.ForwardAdd(s, mixed, x)))
	return s.Keep(start, l.outputNorm.Forward(s, l.down.ForwardAdd(s, l.up.Forward(s, x), x)))
}
