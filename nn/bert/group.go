package bert

import (
	"context"
	"strconv"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/elements"
	"github.com/flashkit-go/flashkit/internal/matmul"
)

// A group is sequences on their way through the layers, all tokens the rows of one matrix:
//
//	x = norm(word + position + type)
//	for each layer:
//		x = norm(x + attention(x Wqkv) Wout)
//		x = norm(x + act(x Wup) Wdown)
type group struct {
	ctx     context.Context
	encoder *Encoder
	workers int
	err     error
	memory  []float32
	x       []float32 // [rows, h]
	qkv     []float32 // [rows, 3h]: of each row the query, the key and the value, each of all heads
	mixed   []float32 // [rows, h]
	inner   []float32 // [rows, i], in the memory of qkv and mixed
	starts  []int32   // of the sequences, from 0
	longest int
	product matmul.Args // the calls in progress, so that none is allocated
	args    flashkit.Args
	seqs    flashkit.Sequences
}

// run returns the last hidden states of the sequences from first up to last. They are valid
// until the next run.
func (g *group) run(ctx context.Context, e *Encoder, b *Batch, first, last, workers int) []float32 {
	g.ctx, g.encoder, g.workers, g.err = ctx, e, workers, ctx.Err()
	g.begin(b, first, last)
	m := e.model
	for i := range m.layers {
		l := &m.layers[i]
		g.multiply(&l.qkv, l.qkvBias, matmul.None, g.qkv, g.x, false)
		g.attend()
		g.multiply(&l.out, l.outBias, matmul.None, g.x, g.mixed, true)
		g.normalize(&l.attentionNorm)
		g.multiply(&l.up, l.upBias, m.act, g.inner, g.x, false)
		g.multiply(&l.down, l.downBias, matmul.None, g.x, g.inner, true)
		g.normalize(&l.outputNorm)
	}
	return g.x
}

// end forgets the call, but for the memory.
func (g *group) end() {
	g.ctx, g.encoder, g.err, g.product = nil, nil, nil, matmul.Args{}
}

// begin takes memory and sets x to the norm of the embeddings.
func (g *group) begin(b *Batch, first, last int) {
	m := g.encoder.model
	h, from := m.config.Hidden, int(b.Starts[first])
	rows := int(b.Starts[last]) - from
	if need := rows * (h + max(4*h, m.config.Intermediate)); len(g.memory) < need {
		g.memory = make([]float32, need)
	}
	g.x, g.qkv, g.mixed = g.memory[:rows*h], g.memory[rows*h:rows*4*h], g.memory[rows*4*h:rows*5*h]
	g.inner = g.memory[rows*h:][:rows*m.config.Intermediate]
	g.starts, g.longest = append(g.starts[:0], 0), 0
	row := g.x
	for s := first; s < last; s++ {
		n := int(b.Starts[s+1] - b.Starts[s])
		g.starts, g.longest = append(g.starts, b.Starts[s+1]-b.Starts[first]), max(g.longest, n)
		for at := range n {
			i, kind := int(b.Starts[s])+at, 0
			if b.Types != nil {
				kind = int(b.Types[i])
			}
			word, position, kinds := m.word[int(b.IDs[i])*h:][:h], m.position[at*h:][:h], m.kind[kind*h:][:h]
			for j := range row[:h] {
				row[j] = word[j] + kinds[j] + position[j]
			}
			row = row[h:]
		}
	}
	g.normalize(&m.norm)
}

// multiply sets to = act(from w + bias), or adds that without act to what is in to.
func (g *group) multiply(w *matmul.Packed, bias []float32, act matmul.Activation, to, from []float32, add bool) {
	if g.err != nil || len(g.x) == 0 {
		return
	}
	k, n := w.Dims()
	rows := len(from) / k
	g.product = matmul.Args{C: matmul.Dense(to, rows, n), A: matmul.Dense(from, rows, k), B: w, Bias: bias, Activation: act, Workers: g.workers}
	if add {
		g.product.Residual = g.product.C
	}
	g.err = g.encoder.products.Run(g.ctx, &g.product)
}

// attend sets mixed to the attention of all heads.
func (g *group) attend() {
	if g.err != nil || len(g.x) == 0 {
		return
	}
	c := &g.encoder.model.config
	h, rows := c.Hidden, len(g.x)/c.Hidden
	heads := func(x []float32, row int) flashkit.Tensor {
		return flashkit.F32(x, 1, c.Heads, rows, h/c.Heads).WithStrides(rows*row, h/c.Heads, row)
	}
	g.seqs = flashkit.Sequences{QStarts: g.starts, KVStarts: g.starts}
	g.args = flashkit.Args{
		Q: heads(g.qkv, 3*h), K: heads(g.qkv[h:], 3*h), V: heads(g.qkv[2*h:], 3*h), O: heads(g.mixed, h),
		Seqs: &g.seqs, Workers: g.workers,
	}
	g.err = g.encoder.attention.Forward(g.ctx, flashkit.Problem{
		Batch: len(g.starts) - 1, Heads: c.Heads, KVHeads: c.Heads, QLen: g.longest, KVLen: g.longest,
		Dim: h / c.Heads, VDim: h / c.Heads, Ragged: true,
	}, &g.args)
}

func (g *group) normalize(n *layerNorm) {
	if g.err == nil {
		elements.Norm(g.x, g.x, n.weight, n.bias, nil, n.eps)
	}
}

func element(field string, i int) string { return "Batch." + field + "[" + strconv.Itoa(i) + "]" }
