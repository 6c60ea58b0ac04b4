package encoder

import (
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/nn"
)

// A postNorm is a layer with layer norms after the residual sums.
type postNorm struct {
	qkv, out, up, down        *nn.Linear // the output features of qkv are the queries, the keys, then the values
	attentionNorm, outputNorm *nn.LayerNorm
	attention, long           *nn.MultiHeadAttention // long is for long sequences: see settleAttention
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
func loadPostNorm(c *config, w *nn.Init, n, hidden, heads, between int, eps float64, act nn.Activation, p nn.Precision, names postNormNames) ([]layer, error) {
	return loadLayers(c, w, n, func(k int) layer {
		in := layerOf(w, names.layers, k)
		square := func(name string) *nn.Linear { return newLinear(in.In(name), hidden, hidden, true, p) }
		q, key, v := square(names.query), square(names.key), square(names.value)
		l := &postNorm{
			attention: nn.NewMultiHeadAttention(heads),
			out:       square(names.out), attentionNorm: newNorm(in.In(names.norm), hidden, eps),
			up: newLinear(in.In(names.up), hidden, between, true, p), down: newLinear(in.In(names.down), between, hidden, true, p),
			outputNorm: newNorm(in.In(names.normDown), hidden, eps),
		}
		l.up.Activation, l.qkv = act, concat(w, q, key, v)
		return l
	})
}

func (l *postNorm) products() []*nn.Linear { return []*nn.Linear{l.qkv, l.out, l.up, l.down} }
func (l *postNorm) settle()                { l.long = settleAttention(l.attention, l.qkv) }
func (l *postNorm) normed() []*nn.Linear   { return []*nn.Linear{l.qkv, l.up} }

func (l *postNorm) forward(s *nn.Step, bias []float32, x nn.Tensor) {
	start := s.Mark()
	qkv, h := l.qkv.Forward(s, x), x.Features
	q, k, v := qkv.Columns(0, h), qkv.Columns(h, h), qkv.Columns(2*h, h)
	attention := attentionOf(l.attention, l.long, &x.Rows)
	var mixed nn.Tensor
	if bias == nil {
		mixed = attention.Forward(s, q, k, v)
	} else {
		mixed = attention.ForwardBias(s, q, k, v, bias)
	}
	l.out.ForwardInto(s, x, mixed, true)
	l.attentionNorm.Apply(s, x)
	s.Keep(start, nn.Tensor{})
	l.down.ForwardInto(s, x, l.up.Forward(s, x), true)
	l.outputNorm.Apply(s, x)
	s.Keep(start, nn.Tensor{})
}

func (l *postNorm) onGPU(p *gpuPass) {
	wide, between := p.products[l.qkv].out, p.products[l.up].out
	qkv := p.matrix(areaWide, wide)
	p.product(qkv, p.x, l.qkv, false)
	p.addBias(qkv, l.qkv)
	p.product(p.x, p.attention(l.attention, wide), l.out, true)
	p.norm(p.x, p.x, l.attentionNorm, l.out)
	up := p.matrix(areaWide, between)
	p.product(up, p.x, l.up, false)
	p.do(func() error { return p.activate(up, up, p.biasOf(l.up), cuda.Activation(l.up.Activation), false) })
	p.product(p.x, up, l.down, true)
	p.norm(p.x, p.x, l.outputNorm, l.down)
}
