package nn

import (
	"sync"
	"sync/atomic"

	"github.com/flashkit-go/flashkit/internal/matmul"
)

// A Linear layer computes act(x W^T + b) for each row x. Forward passes may run concurrently. Two
// backward passes must not run at the same time, because each of them adds to the gradients.
type Linear struct {
	Weight     *Param     // [out, in]
	Bias       *Param     // [out], or nil
	Activation Activation // act, initially None
	Precision  Precision  // of Forward's factors; Int8 is for inference; gradients are computed in float32, with unrounded weights

	// Smooth is nil, or a factor for each input feature, for Int8. Before rounding, Forward multiplies
	// x by the factors and divides the weights by them. Without rounding, nothing would change. Factors
	// that make the features' magnitudes similar reduce the error: see SmoothFactors. Smooth must not
	// change after the first Forward or Pack.
	Smooth []float32

	// Peaks is nil, or a number for each input feature. Forward raises it to the feature's largest
	// magnitude in x. Two passes must then not run at the same time.
	Peaks []float32

	in, out    int
	transposed packing // packed W^T, for Forward
	plain      packing // packed W, for Backward
}

// NewLinear returns a layer from rows of in features to rows of out features. Its parameters are
// "weight" and, if bias is true, "bias".
func NewLinear(i *Init, in, out int, bias bool) *Linear {
	bound := inverseRoot(in)
	l := &Linear{Weight: i.Uniform("weight", bound, out, in), in: in, out: out}
	if bias {
		l.Bias = i.Uniform("bias", bound, out)
	}
	return l
}

// Params returns the weight, and the bias if there is one.
func (l *Linear) Params() []*Param {
	if l.Bias == nil {
		return []*Param{l.Weight}
	}
	return []*Param{l.Weight, l.Bias}
}

// Forward returns act(x W^T + b), [rows, out], for x [rows, in].
func (l *Linear) Forward(s *Step, x Tensor) Tensor { return l.ForwardAdd(s, x, Tensor{}) }

// ForwardAdd returns Forward's result plus a residual [rows, out], in one pass over memory. The
// gradient of the residual is the gradient of the result. The zero Tensor means no residual.
func (l *Linear) ForwardAdd(s *Step, x, residual Tensor) Tensor {
	if !l.usable(s) || !s.accepts(l.Weight.Name, "x", &x, l.in, nil) {
		return Tensor{}
	}
	w := l.weights(s, &x)
	if !s.ok(nil) {
		return Tensor{}
	}
	y := s.NewTensor(x.Rows, l.out)
	s.mm = matmul.Args{C: y.matrix(), A: x.matrix(), B: w, Activation: matmul.Activation(l.Activation)}
	if l.Bias != nil {
		s.mm.Bias = l.Bias.Data
	}
	if residual.Data != nil {
		if !s.accepts(l.Weight.Name, "residual", &residual, l.out, &x.Rows) {
			return Tensor{}
		}
		s.mm.Residual = residual.matrix()
	}
	s.Push(l, x)
	switch {
	case l.Activation == None || !s.train:
	case l.Activation == ReLU && residual.Data == nil:
		s.Push(l, y) // instead of x W^T + b: ReLU's derivative is the same at both
	default:
		before := s.NewTensor(x.Rows, l.out)
		s.mm.Before = before.matrix()
		s.Push(l, before)
	}
	s.multiply()
	return y
}

// ForwardInto sets y, [rows, out], to Forward's result. If add is true, it adds the result to y. It
// is for inference and fails in training.
func (l *Linear) ForwardInto(s *Step, y, x Tensor, add bool) {
	if !s.infers("Linear.ForwardInto") || !s.ok(l.check()) || !s.accepts(l.Weight.Name, "x", &x, l.in, nil) || !s.accepts(l.Weight.Name, "y", &y, l.out, &x.Rows) {
		return
	}
	w := l.weights(s, &x)
	if !s.ok(nil) {
		return
	}
	s.mm = matmul.Args{C: y.matrix(), A: x.matrix(), B: w, Activation: matmul.Activation(l.Activation), Accumulate: add}
	if l.Bias != nil {
		s.mm.Bias = l.Bias.Data
	}
	s.multiply()
}

// Backward returns the gradient of x, [rows, in], given dy, the gradient of Forward's result. It
// adds to the gradients of the weight and the bias.
func (l *Linear) Backward(s *Step, dy Tensor) Tensor {
	if !l.usable(s) || !s.accepts(l.Weight.Name, "dy", &dy, l.out, nil) {
		return Tensor{}
	}
	if l.Activation != None {
		dy = activationGrad(s, l.Activation, s.Pop(l), dy)
	}
	x := s.Pop(l)
	if !s.accepts(l.Weight.Name, "dy", &dy, l.out, &x.Rows) {
		return Tensor{}
	}
	w := l.plain.of(s, l.Weight, false, Float32, nil)
	if !s.ok(nil) {
		return Tensor{}
	}
	dx := s.NewTensor(x.Rows, l.in)
	s.mm = matmul.Args{C: dx.matrix(), A: dy.matrix(), B: w}
	s.multiply()
	s.pack(0, x.matrix())
	s.mm = matmul.Args{C: matmul.Dense(l.Weight.grad(), l.out, l.in), A: dy.matrix().T(), B: &s.packed[0], Accumulate: true}
	s.multiply()
	if l.Bias != nil {
		addColumns(s, l.Bias.grad(), &dy)
	}
	return dx
}

// usable reports whether the pass can continue with the layer.
func (l *Linear) usable(s *Step) bool {
	if l.Precision == Int8 && s.train {
		s.Fail(trainingError(l.Weight.Name + ": Precision Int8"))
	}
	return s.ok(l.check())
}

// check checks everything but Weight.Data, which may be nil after Pack. packing.of checks
// Weight.Data when it packs.
func (l *Linear) check() error {
	if err := l.Weight.checkShape("Linear.Weight", l.out, l.in); err != nil {
		return err
	}
	if l.Activation > SiLU {
		return problem(l.Weight.Name+": Activation", uint8(l.Activation), "must be None, ReLU, GELU, GELUTanh or SiLU")
	}
	if l.Precision > Int8 {
		return problem(l.Weight.Name+": Precision", uint8(l.Precision), "must be Float32, BF16Weights, BF16 or Int8")
	}
	if err := l.checkSmooth(); err != nil {
		return err
	}
	if l.Bias != nil {
		return l.Bias.check("Linear.Bias", 0, l.out)
	}
	return nil
}

func (x *Tensor) matrix() matmul.Matrix {
	return matmul.Matrix{Data: x.Data, Rows: x.Count(), Cols: x.Features, RowStride: x.stride(), ColStride: 1}
}

// Pack copies the layers' weights into one block of memory, in the layout that the matrix kernels
// of Forward read. The layers must be in their order of use. Without Pack, the first Forward of
// each layer packs its weights. A layer can prefetch the next layer's weights into the cache only
// if the weights are in one block. After Pack, inference does not read Weight.Data, so a program
// may set it to nil.
func Pack(layers ...*Linear) error {
	words := 0
	for _, l := range layers {
		if err := l.check(); err != nil {
			return err
		}
		words += matmul.Words(matmul.Precision(l.Precision), l.in, l.out)
	}
	return (&Packer{matmul.NewBlock(words)}).Pack(layers...)
}

// A Packer packs layers into one block of memory, as the function Pack does, but a few layers at a
// time. A program may free their weights before it reads the next layers.
type Packer struct{ block *matmul.Block }

// NewPacker returns a Packer with memory for n times the weights of the given layers. Weights of
// later layers have memory of their own.
func NewPacker(n int, layers ...*Linear) *Packer {
	words := 0
	for _, l := range layers {
		words += matmul.Words(matmul.Precision(l.Precision), l.in, l.out)
	}
	if n < 1 || words > maxElements/n {
		return &Packer{}
	}
	return &Packer{matmul.NewBlock(n * words)}
}

// Pack packs the layers, which must be in their order of use.
func (p *Packer) Pack(layers ...*Linear) error {
	for _, l := range layers {
		if err := l.check(); err != nil {
			return err
		}
		if err := l.Weight.checkData(); err != nil {
			return err
		}
		if err := checkFactors(l.Weight, l.Precision, l.Smooth); err != nil {
			return err
		}
	}
	for _, l := range layers {
		l.transposed.make(l.Weight, l.Precision, l.Smooth, func(to *matmul.Packed) { to.PackIn(p.block, l.Weight.matrix().T()) })
	}
	return nil
}

func (p *Param) matrix() matmul.Matrix { return matmul.Dense(p.Data, p.Shape[0], p.Shape[1]) }

// A packing is a copy of a parameter [out, in], packed: in the layout that the matrix kernels read.
// This copy is made again after the parameter has changed.
type packing struct {
	mu   sync.Mutex
	made atomic.Uint64 // version of the parameter that p has, 0 if p is not packed
	p    matmul.Packed
}

// of returns the packed copy. If the copy is not up to date, of first packs the parameter. If
// packing is needed but Data is missing, the Step fails.
func (c *packing) of(s *Step, w *Param, transposed bool, precision Precision, smooth []float32) *matmul.Packed {
	if c.made.Load() != version(w, precision) && s.ok(w.checkData()) && s.ok(checkFactors(w, precision, smooth)) {
		m := w.matrix()
		if transposed {
			m = m.T()
		}
		c.make(w, precision, smooth, func(p *matmul.Packed) { s.engine.products.Pack(p, m, s.Workers) })
	}
	return &c.p
}

// make calls pack, unless the packed copy is up to date.
func (c *packing) make(w *Param, precision Precision, smooth []float32, pack func(p *matmul.Packed)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if want := version(w, precision); c.made.Load() != want {
		c.p.Precision, c.p.Scale = matmul.Precision(precision), smooth
		pack(&c.p)
		c.made.Store(want)
	}
}

// version returns a number for the parameter's version and the precision. The number is never 0.
func version(w *Param, precision Precision) uint64 { return uint64(precision)<<56 | (w.version + 1) }
