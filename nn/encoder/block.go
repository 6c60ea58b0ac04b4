package encoder

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/nn"
)

// A norm is a LayerNorm or an RMSNorm.
type norm interface {
	Forward(s *nn.Step, x nn.Tensor) nn.Tensor
	Apply(s *nn.Step, x nn.Tensor) // in place
}

// A block is a layer with rotary attention and a gated feed-forward. Each of its norms may be nil.
// It computes:
//
//	x = after(x + attentionOut(attention(attentionIn(x))))
//	x = afterFeed(x + feedOut(feed(feedIn(x))))
type block struct {
	attentionIn, attentionOut, after norm
	feedIn, feedOut, afterFeed       norm

	qkv, out     *nn.Linear  // the output features of qkv are the queries, the keys, then the values
	qNorm, kNorm *nn.RMSNorm // of each head; nil for none
	rotary       *nn.Rotary
	attention    *nn.MultiHeadAttention
	long         *nn.MultiHeadAttention // for long sequences: see settleAttention
	feed         nn.GatedFeedForward
}

// partRows is the number of rows that pass through a product at a time. Only x, qkv and the
// attention's result take memory for all rows.
const partRows = 1024

func (b *block) forward(s *nn.Step, _ []float32, x nn.Tensor) {
	start := s.Mark()
	b.attend(s, x)
	s.Keep(start, nn.Tensor{})
	for from := 0; from < x.Count() && s.Err() == nil; from += partRows {
		part := x.Part(from, min(partRows, x.Count()-from))
		b.feedForward(s, part)
		s.Keep(start, nn.Tensor{})
	}
}

func (b *block) attend(s *nn.Step, x nn.Tensor) {
	g := b.attention.KVHeads
	dim := b.qkv.Weight.Shape[0] / (b.attention.Heads + 2*g)
	h, k := b.attention.Heads*dim, g*dim
	qkv := s.NewTensor(x.Rows, h+2*k)
	for from := 0; from < x.Count() && s.Err() == nil; from += partRows {
		n, start := min(partRows, x.Count()-from), s.Mark()
		part := x.Part(from, n)
		if b.attentionIn != nil {
			part = b.attentionIn.Forward(s, part)
		}
		b.qkv.ForwardInto(s, qkv.Part(from, n), part, false)
		s.Keep(start, nn.Tensor{})
	}
	if b.qNorm != nil {
		b.qNorm.Apply(s, qkv.Columns(0, h))
		b.kNorm.Apply(s, qkv.Columns(h, k))
	}
	b.rotary.Apply(s, qkv.Columns(0, h+k), b.attention.Heads+g)
	mixed := attentionOf(b.attention, b.long, &x.Rows).Forward(s, qkv.Columns(0, h), qkv.Columns(h, k), qkv.Columns(h+k, k))
	for from := 0; from < x.Count() && s.Err() == nil; from += partRows {
		n, start := min(partRows, x.Count()-from), s.Mark()
		part, y := mixed.Part(from, n), x.Part(from, n)
		if b.attentionOut == nil {
			b.out.ForwardInto(s, y, part, true)
		} else {
			out := b.out.Forward(s, part)
			b.attentionOut.Apply(s, out)
			s.AddTo(y, out)
		}
		if b.after != nil {
			b.after.Apply(s, y)
		}
		s.Keep(start, nn.Tensor{})
	}
}

func (b *block) feedForward(s *nn.Step, x nn.Tensor) {
	in := x
	if b.feedIn != nil {
		in = b.feedIn.Forward(s, x)
	}
	if b.feedOut == nil {
		b.feed.ForwardInto(s, x, in, true)
	} else {
		out := b.feed.Forward(s, in)
		b.feedOut.Apply(s, out)
		s.AddTo(x, out)
	}
	if b.afterFeed != nil {
		b.afterFeed.Apply(s, x)
	}
}

func (b *block) onGPU(p *gpuPass) {
	wide, g := p.products[b.qkv].out, b.attention.KVHeads
	dim := wide / (b.attention.Heads + 2*g)
	qkv := p.matrix(areaWide, wide)
	p.product(qkv, p.normed(b.attentionIn), b.qkv, false)
	p.addBias(qkv, b.qkv)
	if b.qNorm != nil {
		q, k := p.heads(areaWide, 0, b.attention.Heads, dim, wide), p.heads(areaWide, b.attention.Heads*dim, g, dim, wide)
		p.norm(q, q, b.qNorm, nil)
		p.norm(k, k, b.kNorm, nil)
	}
	p.turn(p.heads(areaWide, 0, b.attention.Heads+g, dim, wide), b.rotary, dim)
	p.residual(p.attention(b.attention, wide), b.out, b.attentionOut, b.after)
	n := p.products[b.feed.Gate].out
	both := p.matrix(areaWide, 2*n)
	gate, up := p.columns(areaWide, 0, n, 2*n), p.columns(areaWide, n, n, 2*n)
	in := p.normed(b.feedIn)
	p.product(gate, in, b.feed.Gate, false)
	p.product(up, in, b.feed.Up, false)
	p.addBias(gate, b.feed.Gate)
	p.addBias(up, b.feed.Up)
	p.do(func() error {
		return p.activate(gate, both, flashkit.Tensor{}, cuda.Activation(b.feed.Gate.Activation), true)
	})
	p.residual(gate, b.feed.Down, b.feedOut, b.afterFeed)
}

// normed returns the norm of the pass's rows, or the rows if the norm is nil.
func (p *gpuPass) normed(by norm) flashkit.Tensor {
	if by == nil {
		return p.x
	}
	y := p.matrix(areaNormed, p.features)
	p.norm(y, p.x, by, nil)
	return y
}

// residual adds a layer's result for the rows y to the pass's rows, after the norm `before` of the
// result. Then it applies the norm `after`. Both norms may be nil.
func (p *gpuPass) residual(y flashkit.Tensor, l *nn.Linear, before, after norm) {
	if before == nil {
		p.product(p.x, y, l, true)
		p.addBias(p.x, l)
	} else {
		out := p.matrix(areaNormed, p.features)
		p.product(out, y, l, false)
		p.norm(out, out, before, l)
		p.do(func() error { return p.add(p.x, out) })
	}
	if after != nil {
		p.norm(p.x, p.x, after, nil)
	}
}

func (b *block) products() []*nn.Linear {
	return []*nn.Linear{b.qkv, b.out, b.feed.Gate, b.feed.Up, b.feed.Down}
}

func (b *block) settle() { b.long = settleAttention(b.attention, b.qkv) }

func (b *block) normed() []*nn.Linear { return []*nn.Linear{b.qkv, b.feed.Gate, b.feed.Up} }

// halves returns two layers with the first and the second half of a layer's output features. If w
// has failed, it returns l twice.
func halves(w *nn.Init, l *nn.Linear) (a, b *nn.Linear) {
	if w.Err() != nil {
		return l, l
	}
	out, in := l.Weight.Shape[0]/2, l.Weight.Shape[1]
	half := func(n int) *nn.Linear {
		x := nn.NewLinear(nn.Blank(), in, out, false)
		x.Weight.Name, x.Weight.Data, x.Precision = l.Weight.Name, l.Weight.Data[n*out*in:][:out*in], l.Precision
		if l.Bias != nil {
			x.Bias = &nn.Param{Name: l.Bias.Name, Shape: []int{out}, Data: l.Bias.Data[n*out:][:out]}
		}
		return x
	}
	return half(0), half(1)
}

// newRMSNorm returns an RMSNorm.
func newRMSNorm(w *nn.Init, features int, eps float64, offset float32) *nn.RMSNorm {
	l := nn.NewRMSNorm(w, features)
	l.Eps, l.Offset = float32(eps), offset
	return l
}
