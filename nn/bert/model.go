package bert

import (
	"fmt"
	"strings"

	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A Model is the layers of an encoder. It does not change after Load and is safe for concurrent
// use. It computes:
//
//	x = norm(word + type + position)
//	for each layer:
//		x = norm(x + attention(x Wqkv) Wout)
//		x = norm(x + act(x Wup) Wdown)
type Model struct {
	config Config

	word, kind *nn.Embedding
	position   *nn.PositionalEmbedding
	norm       *nn.LayerNorm
	attention  *nn.MultiHeadAttention
	layers     []layer
}

type layer struct {
	qkv, out, up, down        *nn.Linear // the output features of qkv are the queries, the keys, then the values
	attentionNorm, outputNorm *nn.LayerNorm
}

// Load returns a model with the tensors of f, which have Hugging Face's names. The prefix "bert."
// is optional. As in bert-base-uncased, a LayerNorm's weight and bias may be named gamma and beta.
// Load ignores other tensors, such as a pooler's. It does not copy embeddings, norms and biases if
// the machine can read them in place. So the file's bytes must not change while the model is in
// use. A missing tensor, a wrong shape and a type other than F32 are errors.
func Load(c Config, f *safetensors.File) (*Model, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	f, err := renamed(f)
	if err != nil {
		return nil, err
	}
	i := nn.FromFile(f)
	m := &Model{
		config:    c,
		word:      nn.NewEmbedding(i.In("embeddings.word_embeddings"), c.Vocab, c.Hidden),
		kind:      nn.NewEmbedding(i.In("embeddings.token_type_embeddings"), c.Types, c.Hidden),
		position:  nn.NewPositionalEmbedding(i.In("embeddings.position_embeddings"), c.Positions, c.Hidden),
		norm:      c.newNorm(i.In("embeddings")),
		attention: nn.NewMultiHeadAttention(c.Heads),
	}
	var products []*nn.Linear
	for n := 0; n < c.Layers && i.Err() == nil; n++ {
		l := c.newLayer(i.In(fmt.Sprintf("encoder.layer.%d", n)))
		m.layers = append(m.layers, l)
		products = append(products, l.qkv, l.out, l.up, l.down)
	}
	if i.Err() != nil {
		return nil, i.Err()
	}
	if err := nn.Pack(products...); err != nil {
		return nil, err
	}
	for _, l := range products {
		l.Weight.Data = nil // not needed after Pack; this frees qkv, and copies of tensors that cannot be read in place
	}
	return m, nil
}

// Config returns the Config that was passed to Load.
func (m *Model) Config() Config { return m.config }

// renamed returns the file's tensors without the prefix "bert." in their names. It also renames
// gamma to weight, and beta to bias.
func renamed(f *safetensors.File) (*safetensors.File, error) {
	const words, withHead = "embeddings.word_embeddings.weight", "bert."
	prefix := ""
	if _, plain := f.Tensor(words); !plain {
		if _, ok := f.Tensor(withHead + words); ok {
			prefix = withHead
		}
	}
	now := strings.NewReplacer("LayerNorm.gamma", "LayerNorm.weight", "LayerNorm.beta", "LayerNorm.bias")
	r := &safetensors.File{}
	for _, t := range f.Tensors {
		name, ok := strings.CutPrefix(t.Name, prefix)
		if !ok {
			continue
		}
		t.Name = now.Replace(name)
		if _, twice := f.Tensor(prefix + t.Name); twice && t.Name != name {
			return nil, fmt.Errorf("bert: tensors %.300q and %.300q are the same parameter", prefix+t.Name, prefix+name)
		}
		r.Tensors = append(r.Tensors, t)
	}
	return r, nil
}

func (c *Config) newLayer(i *nn.Init) layer {
	linear := func(name string, in, out int) *nn.Linear {
		l := nn.NewLinear(i.In(name), in, out, true)
		l.Precision = precisions[c.Precision]
		return l
	}
	h := c.Hidden
	q, k, v := linear("attention.self.query", h, h), linear("attention.self.key", h, h), linear("attention.self.value", h, h)
	l := layer{
		out: linear("attention.output.dense", h, h), attentionNorm: c.newNorm(i.In("attention.output")),
		up: linear("intermediate.dense", h, c.Intermediate), down: linear("output.dense", c.Intermediate, h), outputNorm: c.newNorm(i.In("output")),
	}
	l.up.Activation = activations[c.Activation]
	if i.Err() == nil { // after an error, a config might claim layers much larger than the file
		l.qkv = concat(q, k, v)
	}
	return l
}

// concat returns one layer whose output features are the output features of all layers,
// concatenated.
func concat(layers ...*nn.Linear) *nn.Linear {
	out := 0
	for _, l := range layers {
		out += l.Weight.Shape[0]
	}
	all := nn.NewLinear(nn.Blank(), layers[0].Weight.Shape[1], out, true)
	all.Precision = layers[0].Precision
	weight, bias := all.Weight.Data, all.Bias.Data
	for _, l := range layers {
		weight = weight[copy(weight, l.Weight.Data):]
		bias = bias[copy(bias, l.Bias.Data):]
	}
	return all
}

func (c *Config) newNorm(i *nn.Init) *nn.LayerNorm {
	l := nn.NewLayerNorm(i.In("LayerNorm"), c.Hidden)
	l.Eps = float32(c.Eps)
	return l
}

// forward returns the last hidden states of the tokens. types are the tokens' types and have the
// same Rows.
func (m *Model) forward(s *nn.Step, tokens, types nn.Tokens) nn.Tensor {
	start := s.Mark()
	x := s.Add(m.word.Forward(s, tokens), m.kind.Forward(s, types))
	x = s.Keep(start, m.norm.Forward(s, m.position.Forward(s, x)))
	for i := range m.layers {
		l := &m.layers[i]
		qkv, h := l.qkv.Forward(s, x), m.config.Hidden
		mixed := m.attention.Forward(s, qkv.Columns(0, h), qkv.Columns(h, h), qkv.Columns(2*h, h))
		x = s.Keep(start, l.attentionNorm.Forward(s, l.out.ForwardAdd(s, mixed, x)))
		x = s.Keep(start, l.outputNorm.Forward(s, l.down.ForwardAdd(s, l.up.Forward(s, x), x)))
	}
	return x
}
