package encoder

import (
	"math"

	"github.com/flashkit-go/flashkit/nn"
)

// A roberta is an encoder like BERT. Its positions count from the padding token's id plus 1, and
// omit padding tokens in the text. RoBERTa, XLM-RoBERTa and CamemBERT share it.
//
// Source: Liu et al., RoBERTa, 2019; Conneau et al., XLM-R, 2020.
type roberta struct {
	size       shape
	word, kind *nn.Embedding
	position   *nn.Param
	pad        int32
	norm       *nn.LayerNorm
	stack
}

// loadRoBERTa reads a RobertaModel. A missing key has the default of transformers' RobertaConfig.
func loadRoBERTa(c *config, w *nn.Init, p nn.Precision) (family, error) {
	standard := 30522
	if c.text("model_type", "") == "roberta" {
		standard = 50265
	}
	vocab, hidden := c.integer("vocab_size", standard, 1), c.integer("hidden_size", 768, 1)
	layers, heads := c.integer("num_hidden_layers", 12, 0), c.heads("num_attention_heads", 12, hidden)
	between := c.integer("intermediate_size", 3072, 1)
	positions, types := c.integer("max_position_embeddings", 512, 1), c.integer("type_vocab_size", 2, 1)
	eps, act, pad := c.number("layer_norm_eps", 1e-12), c.activation("hidden_act", "gelu"), c.integer("pad_token_id", 1, 0)
	c.Only("position_embedding_type", `"absolute"`)
	if pad+1 >= positions {
		c.Refuse("pad_token_id", "must be less than max_position_embeddings - 1")
	}
	if err := c.Done(harmlessKeys...); err != nil {
		return nil, err
	}
	e := w.In("embeddings")
	m := &roberta{
		size:     shape{hidden, vocab, positions - pad - 1, types, false},
		word:     nn.NewEmbedding(e.In("word_embeddings"), vocab, hidden),
		kind:     nn.NewEmbedding(e.In("token_type_embeddings"), types, hidden),
		position: nn.NewPositionalEmbedding(e.In("position_embeddings"), positions, hidden).Weight,
		pad:      int32(pad),
		norm:     newNorm(e.In("LayerNorm"), hidden, eps),
	}
	var err error
	m.layers, err = loadPostNorm(c, w, layers, hidden, heads, between, eps, act, p, bertNames)
	return m, err
}

func (m *roberta) shape() shape { return m.size }

func (m *roberta) embed(s *nn.Step, tokens, types nn.Tokens) nn.Tensor {
	start := s.Mark()
	x := s.Add(m.word.Forward(s, tokens), m.kind.Forward(s, types))
	addPositions(s, x, tokens, m.position, m.pad)
	return s.Keep(start, m.norm.Forward(s, x))
}

// addPositions adds the position's row of weight to each row of x. The first token of a sequence
// has position pad+1. A padding token has position pad, and the next token's position does not
// count it.
func addPositions(s *nn.Step, x nn.Tensor, tokens nn.Tokens, weight *nn.Param, pad int32) {
	if s.Err() != nil {
		return
	}
	positions, h := weight.Shape[0], weight.Shape[1]
	for b := range tokens.Batch {
		next := int(pad) + 1
		for i := tokens.Starts[b]; i < tokens.Starts[b+1]; i++ {
			at := next
			if tokens.IDs[i] == pad {
				at = int(pad)
			} else {
				next++
			}
			if at >= positions {
				s.Fail(problem("tokens", tokens.Starts[b+1]-tokens.Starts[b], "are beyond the model's positions"))
				return
			}
			row := x.Row(int(i))
			for j, v := range weight.Data[at*h:][:len(row)] {
				row[j] += v
			}
		}
	}
}

// robertaHead is RobertaForSequenceClassification, and MPNetForSequenceClassification.
func robertaHead(_ *config, w *nn.Init, hidden, labels int) []stage {
	dense := &dense{linear: nn.NewLinear(w.In("classifier.dense"), hidden, hidden, true), function: math.Tanh}
	return []stage{firstToken(), dense, logits(w.In("classifier.out_proj"), hidden, labels)}
}
