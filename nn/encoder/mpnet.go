package encoder

import (
	"math"

	"github.com/flashkit-go/flashkit/nn"
)

// An mpnet is an encoder like RoBERTa, without token types. All layers add to a score a learned
// bias that depends on the head and on the distance from the row to the key.
//
// Source: Song, Tan, Qin, Lu, Liu, MPNet, 2020; the bias: Raffel et al., T5, 2019.
type mpnet struct {
	size      shape
	word      *nn.Embedding
	position  *nn.Param
	norm      *nn.LayerNorm
	biases    []float32 // [heads, 2*distances - 1]: the bias of a key that is distance - distances + 1 rows after the row
	distances int
	stack
}

var mpnetNames = postNormNames{
	"encoder.layer", "attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o",
	"attention.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
}

// mpnetPad is the id of the padding token and mpnetBuckets the number of biases of a head. MPNet's
// code fixes both.
const (
	mpnetPad     = 1
	mpnetBuckets = 32
)

// loadMPNet reads an MPNetModel. A missing key has the default of transformers' MPNetConfig.
func loadMPNet(c *config, w *nn.Init, p nn.Precision) (family, error) {
	vocab, hidden := c.integer("vocab_size", 30527, 1), c.integer("hidden_size", 768, 1)
	layers, heads := c.integer("num_hidden_layers", 12, 0), c.heads("num_attention_heads", 12, hidden)
	between, positions := c.integer("intermediate_size", 3072, 1), c.integer("max_position_embeddings", 512, mpnetPad+2)
	eps, act := c.number("layer_norm_eps", 1e-12), c.activation("hidden_act", "gelu")
	c.Only("relative_attention_num_buckets", "32") // MPNet's code fixes it, too
	if err := c.Done(harmlessKeys...); err != nil {
		return nil, err
	}
	e := w.In("embeddings")
	m := &mpnet{
		size:     shape{hidden, vocab, positions - mpnetPad - 1, 0, false},
		word:     nn.NewEmbedding(e.In("word_embeddings"), vocab, hidden),
		position: nn.NewPositionalEmbedding(e.In("position_embeddings"), positions, hidden).Weight,
		norm:     newNorm(e.In("LayerNorm"), hidden, eps),
	}
	table := nn.NewEmbedding(w.In("encoder.relative_attention_bias"), mpnetBuckets, heads).Weight
	var err error
	if m.layers, err = loadPostNorm(c, w, layers, hidden, heads, between, eps, act, p, mpnetNames); err != nil {
		return nil, err
	}
	m.distances = m.size.positions
	m.biases = make([]float32, heads*(2*m.distances-1))
	for h := range heads {
		for i := range 2*m.distances - 1 {
			m.biases[h*(2*m.distances-1)+i] = table.Data[bucketOf(i-m.distances+1)*heads+h]
		}
	}
	m.bias = m.spread
	return m, nil
}

// bucketOf returns the bucket of a key that is the given number of rows after the row. Half of the
// buckets are for keys after the row. Near distances have a bucket each, and far ones share buckets
// of logarithmic widths.
func bucketOf(after int) int {
	const half, exact, far = mpnetBuckets / 2, mpnetBuckets / 4, 128
	first := 0
	if after > 0 {
		first = half
	} else {
		after = -after
	}
	if after < exact {
		return first + after
	}
	wide := float32(math.Log(float64(float32(after)/exact))) / float32(math.Log(far/exact)) * (half - exact)
	return first + min(exact+int(wide), half-1)
}

func (m *mpnet) shape() shape { return m.size }

func (m *mpnet) embed(s *nn.Step, tokens, _ nn.Tokens) nn.Tensor {
	start := s.Mark()
	x := m.word.Forward(s, tokens)
	addPositions(s, x, tokens, m.position, mpnetPad)
	return s.Keep(start, m.norm.Forward(s, x))
}

// spread returns the biases of all heads, [heads, t, t].
func (m *mpnet) spread(s *nn.Step, t int) []float32 {
	heads := len(m.biases) / (2*m.distances - 1)
	bias := s.NewTensor(nn.Rows{Batch: heads, T: t}, max(t, 1))
	if s.Err() != nil {
		return nil
	}
	for h := range heads {
		of := m.biases[h*(2*m.distances-1):][:2*m.distances-1]
		for i := range t {
			copy(bias.Row(h*t+i), of[m.distances-1-i:][:t])
		}
	}
	return bias.Data
}
