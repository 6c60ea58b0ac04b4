package encoder

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/nn"
)

// An area is a block of a machine's memory.
type area interface {
	// Tensor returns a dense view [b, heads, rows, dim] that begins at an element of the block.
	Tensor(t flashkit.DType, from, b, heads, rows, dim int) flashkit.Tensor
	Bytes() int
	Free() error
}

// A machine computes on float32 matrices [1, 1, rows, features] in its memory, in the order of the
// calls. One goroutine at a time may use it.
type machine interface {
	alloc(bytes int) (area, error)
	upload(to area, src []float32) error
	uploadInts(to area, src []int32) error
	download(dst []float32, from area) error

	multiply(c, a, w flashkit.Tensor, add bool) error // C = A W^T, or C += A W^T
	normalize(y, x flashkit.Tensor, n *cuda.Norm) error
	activate(y, x, bias flashkit.Tensor, f cuda.Activation, gated bool) error
	rotate(x, table flashkit.Tensor, positions area) error
	add(y, x flashkit.Tensor) error // y += x
	attend(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error
	close() error
}

// gpuRows is the maximum number of tokens of a group on a GPU. A longer sequence is a group of its
// own.
const gpuRows = 1 << 14

// A gpu has the weights of a model's layers in a machine's memory. It runs one pass at a time.
type gpu struct {
	machine
	name string // for Explain

	mu        sync.Mutex
	products  map[*nn.Linear]*gpuProduct
	vectors   map[*nn.Param]area
	tables    map[*nn.Rotary]*gpuTable
	rows      [numAreas]area // of the activations
	positions area
	places    []int32 // of the rows in their sequences
	pass      gpuPass
}

// A gpuProduct is a linear layer's parameters.
type gpuProduct struct {
	weight, bias area // bias may be nil
	in, out      int
}

// A gpuTable is the cosines and sines of the first positions.
type gpuTable struct {
	area
	positions int
}

// The matrices of activations.
type areaID int

const (
	areaX      areaID = iota // the layers' rows
	areaNormed               // rows after a norm, or before they are added
	areaWide                 // queries, keys and values; hidden features of a feed-forward
	areaMixed                // the attention's result
	numAreas
)

func newGPU(m machine, name string) *gpu {
	return &gpu{machine: m, name: name, products: map[*nn.Linear]*gpuProduct{}, vectors: map[*nn.Param]area{}, tables: map[*nn.Rotary]*gpuTable{}}
}

// load uploads the parameters of products.
func (g *gpu) load(products []*nn.Linear) error {
	for _, l := range products {
		p := &gpuProduct{out: l.Weight.Shape[0], in: l.Weight.Shape[1]}
		g.products[l] = p
		var err error
		if p.weight, err = g.copyOf(l.Weight.Data); err != nil {
			return err
		}
		if l.Bias == nil {
			continue
		}
		if p.bias, err = g.copyOf(l.Bias.Data); err != nil {
			return err
		}
	}
	return nil
}

func (g *gpu) copyOf(x []float32) (area, error) {
	a, err := g.alloc(4 * len(x))
	if err != nil {
		return nil, err
	}
	if err := g.upload(a, x); err != nil {
		return nil, errors.Join(err, a.Free())
	}
	return a, nil
}

// grow makes *a an area of at least n elements. Its content is lost.
func (g *gpu) grow(a *area, n int) error {
	if *a != nil && (*a).Bytes() >= 4*n {
		return nil
	}
	if *a != nil {
		old := *a
		*a = nil
		if err := old.Free(); err != nil {
			return err
		}
	}
	var err error
	*a, err = g.alloc(4 * n)
	if err != nil {
		*a = nil
	}
	return err
}

// free frees the memory and closes the machine.
func (g *gpu) free() error {
	if g == nil {
		return nil
	}
	var all []area
	for _, p := range g.products {
		all = append(all, p.weight, p.bias)
	}
	for _, v := range g.vectors {
		all = append(all, v)
	}
	for _, t := range g.tables {
		all = append(all, t.area)
	}
	var err error
	for _, a := range append(append(all, g.rows[:]...), g.positions) {
		if a != nil {
			err = errors.Join(err, a.Free())
		}
	}
	return errors.Join(err, g.close())
}

// run replaces the rows x, which enter the first layer of k, by the hidden states. positions is the
// maximum number of rows of a sequence, or 0. Passes wait for each other.
func (g *gpu) run(ctx context.Context, s *nn.Step, k *stack, x nn.Tensor, positions int) error {
	n := x.Count()
	if n == 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &g.pass
	*p = gpuPass{gpu: g, ctx: ctx, step: s, Rows: x.Rows, count: n, features: x.Features, limit: positions}
	defer func() { *p = gpuPass{} }()
	p.equal = true
	for b := range x.Batch {
		p.equal = p.equal && int(x.Starts[b+1]-x.Starts[b]) == x.T
	}
	p.x = p.matrix(areaX, x.Features)
	p.do(func() error { return g.upload(g.rows[areaX], x.Data[:n*x.Features]) })
	for _, l := range k.layers {
		p.do(ctx.Err)
		l.onGPU(p)
	}
	if k.last != nil {
		p.norm(p.x, p.x, k.last, nil)
	}
	p.do(func() error { return g.download(x.Data[:n*x.Features], g.rows[areaX]) })
	if p.err != nil && ctx.Err() == nil {
		return fmt.Errorf("layers on %s: %w", g.name, p.err)
	}
	return p.err
}

// A gpuPass is the layers' pass over packed rows. After an error, its methods do nothing.
type gpuPass struct {
	*gpu
	nn.Rows
	ctx      context.Context
	step     *nn.Step
	count    int             // of rows
	features int             // of a row of x
	limit    int             // most rows of a sequence; 0 for no limit
	equal    bool            // all sequences have the same number of rows
	placed   bool            // positions are uploaded
	x        flashkit.Tensor // [count, features]: the rows that a layer replaces
	args     flashkit.Args
	seqs     flashkit.Sequences
	err      error
}

func (p *gpuPass) do(f func() error) {
	if p.err == nil {
		p.err = f()
	}
}

// matrix returns a matrix [count, features] without gaps in an area, whose content is undefined.
func (p *gpuPass) matrix(id areaID, features int) flashkit.Tensor {
	p.do(func() error { return p.grow(&p.rows[id], p.count*features) })
	if p.err != nil {
		return flashkit.Tensor{}
	}
	return p.rows[id].Tensor(flashkit.Float32, 0, 1, 1, p.count, features)
}

// columns returns a view of n features of each row in an area whose rows have `wide` features.
func (p *gpuPass) columns(id areaID, from, n, wide int) flashkit.Tensor {
	return p.heads(id, from, 1, n, wide)
}

// heads returns the view [1, heads, count, dim] of columns.
func (p *gpuPass) heads(id areaID, from, heads, dim, wide int) flashkit.Tensor {
	if p.err != nil {
		return flashkit.Tensor{}
	}
	return p.rows[id].Tensor(flashkit.Float32, from, 1, heads, p.count, dim).WithStrides(0, dim, wide)
}

// sequences returns the same columns as a tensor of attention.
func (p *gpuPass) sequences(id areaID, from, heads, dim, wide int) flashkit.Tensor {
	if p.equal {
		return p.rows[id].Tensor(flashkit.Float32, from, p.Batch, heads, p.T, dim).WithStrides(p.T*wide, dim, wide)
	}
	return p.heads(id, from, heads, dim, wide)
}

// product sets y to x W^T, or adds x W^T to y. The bias is left to the next operation.
func (p *gpuPass) product(y, x flashkit.Tensor, l *nn.Linear, add bool) {
	p.do(func() error {
		w := p.products[l]
		return p.multiply(y, x, w.weight.Tensor(flashkit.Float32, 0, 1, 1, w.out, w.in), add)
	})
}

// biasOf returns a layer's bias, or the zero Tensor. A nil layer has no bias.
func (p *gpuPass) biasOf(l *nn.Linear) flashkit.Tensor {
	if l == nil || p.err != nil || p.products[l].bias == nil {
		return flashkit.Tensor{}
	}
	return p.products[l].bias.Tensor(flashkit.Float32, 0, 1, 1, 1, p.products[l].out)
}

// addBias adds a layer's bias, if it has one, to y.
func (p *gpuPass) addBias(y flashkit.Tensor, l *nn.Linear) {
	if bias := p.biasOf(l); !bias.IsZero() {
		p.do(func() error { return p.activate(y, y, bias, cuda.Identity, false) })
	}
}

// norm sets y to the norm of x plus the bias of a layer, which may be nil.
func (p *gpuPass) norm(y, x flashkit.Tensor, by norm, l *nn.Linear) {
	n := cuda.Norm{Bias: p.biasOf(l)}
	switch by := by.(type) {
	case *nn.LayerNorm:
		n.Weight, n.Shift, n.Eps = p.vector(by.Weight, 0), p.vector(by.Bias, 0), by.Eps
	case *nn.RMSNorm:
		n.Weight, n.Eps, n.RMS = p.vector(by.Weight, by.Offset), by.Eps, true
	}
	p.do(func() error { return p.normalize(y, x, &n) })
}

// vector returns a norm's parameter plus an offset.
func (p *gpuPass) vector(v *nn.Param, offset float32) flashkit.Tensor {
	p.do(func() (err error) {
		if p.vectors[v] == nil {
			x := make([]float32, len(v.Data))
			for i, e := range v.Data {
				x[i] = e + offset
			}
			p.vectors[v], err = p.copyOf(x)
		}
		return err
	})
	if p.err != nil {
		return flashkit.Tensor{}
	}
	return p.vectors[v].Tensor(flashkit.Float32, 0, 1, 1, 1, len(v.Data))
}

// turn rotates the heads of x, of dim features, by the rows' positions.
func (p *gpuPass) turn(x flashkit.Tensor, by *nn.Rotary, dim int) {
	p.do(func() error {
		if t := p.tables[by]; t == nil || t.positions < p.T {
			if err := p.makeTable(by, dim); err != nil {
				return err
			}
		}
		if !p.placed {
			p.places = p.places[:0]
			for b := range p.Batch {
				for i := range p.Starts[b+1] - p.Starts[b] {
					p.places = append(p.places, i)
				}
			}
			if err := p.grow(&p.positions, p.count); err != nil {
				return err
			}
			if err := p.uploadInts(p.positions, p.places); err != nil {
				return err
			}
			p.placed = true
		}
		t := p.tables[by]
		return p.rotate(x, t.Tensor(flashkit.Float32, 0, 1, 1, t.positions, dim), p.positions)
	})
}

// makeTable makes a table of the pass's positions, rounded up to a power of two. The rotation of a
// row whose pairs are (1, 0) is the cosines, then the sines.
func (p *gpuPass) makeTable(by *nn.Rotary, dim int) error {
	n := 1 << bits.Len(uint(p.T-1))
	if p.limit > 0 {
		n = max(min(n, p.limit), p.T)
	}
	ones := nn.NewTensor(make([]float32, n*dim), 1, n, dim)
	for i := range n {
		for j := range dim / 2 {
			ones.Data[i*dim+j] = 1
		}
	}
	if by.Apply(p.step, ones, 1); p.step.Err() != nil {
		return p.step.Err()
	}
	a, err := p.copyOf(ones.Data)
	if err != nil {
		return err
	}
	if old := p.tables[by]; old != nil {
		err = old.Free()
	}
	p.tables[by] = &gpuTable{a, n}
	return err
}

// attention computes the attention of queries, keys and values, which are the columns of areaWide. It
// returns the result, a matrix without gaps.
func (p *gpuPass) attention(a *nn.MultiHeadAttention, wide int) flashkit.Tensor {
	g := a.KVHeads
	if g == 0 {
		g = a.Heads
	}
	dim := wide / (a.Heads + 2*g)
	y := p.matrix(areaMixed, a.Heads*dim)
	p.do(func() error {
		q := flashkit.Problem{Batch: p.Batch, Heads: a.Heads, KVHeads: g, QLen: p.T, KVLen: p.T, Dim: dim, VDim: dim, Scale: a.Scale, Band: a.Band, Ragged: !p.equal}
		if a.Causal {
			q.Band = flashkit.Causal()
		}
		p.args = flashkit.Args{Q: p.sequences(areaWide, 0, a.Heads, dim, wide), K: p.sequences(areaWide, a.Heads*dim, g, dim, wide),
			V: p.sequences(areaWide, (a.Heads+g)*dim, g, dim, wide), O: p.sequences(areaMixed, 0, a.Heads, dim, a.Heads*dim)}
		if !p.equal {
			p.seqs = flashkit.Sequences{QStarts: p.Starts, KVStarts: p.Starts}
			p.args.Seqs = &p.seqs
		}
		return p.attend(p.ctx, q, &p.args)
	})
	return y
}
