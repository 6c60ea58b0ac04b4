package encoder

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit/internal/matmul"
	"github.com/flashkit-go/flashkit/nn"
)

// A family computes the last hidden states of packed rows. It does not change after it is loaded,
// and is safe for concurrent use.
type family interface {
	// embed returns the rows that enter the first layer, [rows, hidden]. tokens and types have the
	// same Rows.
	embed(s *nn.Step, tokens, types nn.Tokens) nn.Tensor
	body() *stack // turns these rows into the hidden states
	shape() shape
}

// A shape has the dimensions that the rest of the package needs.
type shape struct {
	hidden    int  // features of a row
	vocab     int  // tokens of the vocabulary
	positions int  // tokens of the longest sequence; 0 means no limit
	types     int  // token types; 0 means that the family has none
	rotary    bool // the positions are no rows of a table of weights
}

// A kind has the functions that load the models of one model_type.
type kind struct {
	// load reads config.json and the tensors. It reads all keys of c and calls c.done before it
	// reads tensors.
	load func(c *config, w *nn.Init, p nn.Precision) (family, error)

	// head returns the stages between the hidden states and the labels of a sequence classifier. It
	// is nil if sequence classification is not supported.
	head func(c *config, w *nn.Init, hidden, labels int) []stage

	prefix string // prefix of the tensors' names in files of models with a head, such as "bert."
}

// kinds are the supported values of model_type.
var kinds = map[string]kind{
	"bert":        {loadBERT, bertHead, "bert."},
	"camembert":   {loadRoBERTa, robertaHead, "roberta."},
	"distilbert":  {loadDistilBERT, distilbertHead, "distilbert."},
	"mpnet":       {loadMPNet, robertaHead, "mpnet."},
	"roberta":     {loadRoBERTa, robertaHead, "roberta."},
	"xlm-roberta": {loadRoBERTa, robertaHead, "roberta."},
	"gemma3_text": {loadGemma3, decoderHead, "model."},
	"modernbert":  {loadModernBERT, modernHead, "model."},
	"nomic_bert":  {loadNomicBERT, bertHead, "nomic_bert."},
	"qwen3":       {loadQwen3, decoderHead, "model."},
}

func kindOf(c *config) (kind, error) {
	name := c.text("model_type", "")
	k, ok := kinds[name]
	if !ok {
		c.Refuse("model_type", "must be %s", strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	}
	return k, c.Err
}

// activations maps Hugging Face's names to activations.
var activations = map[string]nn.Activation{
	"gelu": nn.GELU, "gelu_python": nn.GELU, "gelu_new": nn.GELUTanh, "gelu_fast": nn.GELUTanh, "gelu_pytorch_tanh": nn.GELUTanh, "relu": nn.ReLU, "silu": nn.SiLU, "swish": nn.SiLU,
}

// activation returns the activation that a key names.
func (c *config) activation(key, otherwise string) nn.Activation {
	name := c.text(key, otherwise)
	a, ok := activations[name]
	if !ok {
		c.Refuse(key, "must be %s", strings.Join(slices.Sorted(maps.Keys(activations)), ", "))
	}
	return a
}

// heads returns the number of attention heads, which must divide hidden.
func (c *config) heads(key string, otherwise, hidden int) int {
	n := c.integer(key, otherwise, 1)
	if n > 0 && hidden%n != 0 {
		c.Refuse(key, "must divide the hidden size %d", hidden)
	}
	return n
}

// newLinear returns a linear layer with the tensors weight and, if bias is true, bias.
func newLinear(w *nn.Init, in, out int, bias bool, p nn.Precision) *nn.Linear {
	l := nn.NewLinear(w, in, out, bias)
	l.Precision = p
	return l
}

// newNorm returns a layer norm.
func newNorm(w *nn.Init, features int, eps float64) *nn.LayerNorm {
	l := nn.NewLayerNorm(w, features)
	l.Eps = float32(eps)
	return l
}

// concat returns one layer whose output features are the output features of all layers,
// concatenated. If w has failed, concat returns the first layer.
func concat(w *nn.Init, layers ...*nn.Linear) *nn.Linear {
	if w.Err() != nil { // a config might claim layers much larger than the file
		return layers[0]
	}
	out := 0
	for _, l := range layers {
		out += l.Weight.Shape[0]
	}
	all := nn.NewLinear(nn.Blank(), layers[0].Weight.Shape[1], out, layers[0].Bias != nil)
	all.Weight.Name, all.Precision = layers[0].Weight.Name, layers[0].Precision
	weight := all.Weight.Data
	for _, l := range layers {
		weight = weight[copy(weight, l.Weight.Data):]
	}
	if all.Bias != nil {
		bias := all.Bias.Data
		for _, l := range layers {
			bias = bias[copy(bias, l.Bias.Data):]
		}
	}
	return all
}

// collected is the number of bytes of unpacked weights after which loadLayers frees them.
const collected = 64 << 20

// A layer computes rows in place. It has products.
type layer interface {
	// forward computes the layer. bias is nil or a bias of the scores, as in
	// nn.MultiHeadAttention.ForwardBias.
	forward(s *nn.Step, bias []float32, x nn.Tensor)
	onGPU(p *gpuPass)       // computes the layer on a GPU, for the rows of p
	products() []*nn.Linear // in their order of use
	settle()                // sets attention's precision, given the products' precisions
	normed() []*nn.Linear   // the products whose rows are the results of a norm
}

// A stack is the layers of a model.
type stack struct {
	layers []layer
	bias   func(s *nn.Step, t int) []float32 // returns the scores' bias for sequences of up to t rows; nil for none
	last   norm                              // after the last layer; nil for none
}

func (k *stack) body() *stack { return k }

// forward computes the hidden states in place.
func (k *stack) forward(s *nn.Step, x nn.Tensor) {
	var bias []float32
	if k.bias != nil {
		bias = k.bias(s, x.T)
	}
	for _, l := range k.layers {
		l.forward(s, bias, x)
	}
	if k.last != nil {
		k.last.Apply(s, x)
	}
}

// loadLayers returns the n layers of a model. It packs the weights of a layer, and frees the unpacked
// weights, before it reads the next layer. It returns the first error of w.
func loadLayers(c *config, w *nn.Init, n int, load func(k int) layer) ([]layer, error) {
	var layers []layer
	var packer *nn.Packer
	freed := 0
	for k := 0; k < n && w.Err() == nil; k++ {
		l := load(k)
		if w.Err() != nil {
			break
		}
		size := 0
		for _, p := range l.products() {
			size += p.Weight.Shape[0] * p.Weight.Shape[1]
		}
		c.smooth.apply(l.normed())
		c.keep(l.products())
		l.settle()
		if c.gpu != nil {
			if err := c.gpu.load(l.products()); err != nil {
				return nil, err
			}
		} else if packer == nil { // a config might claim more layers than the files have
			packer = nn.NewPacker(min(n, c.elements/max(size, 1)+1), l.products()...)
		}
		if c.gpu == nil {
			if err := packer.Pack(l.products()...); err != nil {
				return nil, err
			}
		}
		for _, p := range l.products() {
			p.Weight.Data = nil
		}
		if freed += 4 * size; freed > collected {
			runtime.GC() // otherwise the heap would grow to twice the packed weights
			freed = 0
		}
		layers = append(layers, l)
	}
	return layers, w.Err()
}

// settleAttention sets attention's precision, given the product before it. It returns the attention of
// sequences with more than groupRows tokens. These have groups of their own, so a sequence's precision
// does not depend on the batch. With 8 bits, attention is most of a long sequence's work.
func settleAttention(a *nn.MultiHeadAttention, qkv *nn.Linear) (long *nn.MultiHeadAttention) {
	if qkv.Precision == nn.BF16 {
		a.Precision = nn.BF16
	}
	if qkv.Precision != nn.Int8 || !matmul.MultipliesBF16() {
		return a
	}
	rounded := *a
	rounded.Precision = nn.BF16
	return &rounded
}

// attentionOf returns the attention of the rows: short, or long if a sequence has more than groupRows.
func attentionOf(short, long *nn.MultiHeadAttention, r *nn.Rows) *nn.MultiHeadAttention {
	if r.T > groupRows {
		return long
	}
	return short
}

// layerOf returns the Init of a numbered layer.
func layerOf(w *nn.Init, name string, n int) *nn.Init { return w.In(fmt.Sprintf("%s.%d", name, n)) }
