package nn

import (
	"hash/fnv"
	"math"
	"math/rand/v2"

	"github.com/flashkit-go/flashkit/safetensors"
)

// maxElements is the largest number of elements of a parameter, a cache or a rotation table. On
// 32-bit machines the number of bytes must fit an int.
const maxElements = min(math.MaxInt32, math.MaxInt/8)

// A Param is one parameter of a layer and its gradient. Forward reads the parameter. Backward adds
// to the gradient. An optimizer reads the gradient and updates the parameter.
type Param struct {
	Name  string    // such as "layers.0.attention.q.weight"
	Shape []int     // dimensions, such as [out, in]
	Data  []float32 // row-major; call Changed after a write
	Grad  []float32 // len(Data) elements, or nil before the first use

	version uint64 // incremented when Data changes, which invalidates packed copies
}

// Changed marks Data as changed, so that Linear layers pack it again. A program calls Changed after
// it writes to Data. Optimizers, Load and Assign call Changed themselves. No pass may run during
// the write or the call.
func (p *Param) Changed() { p.version++ }

// ZeroGrad zeros the gradient. It allocates the gradient if needed.
func (p *Param) ZeroGrad() { clear(p.grad()) }

// grad returns the gradient. It allocates a gradient of zeros if needed.
func (p *Param) grad() []float32 {
	if len(p.Grad) != len(p.Data) {
		p.Grad = make([]float32, len(p.Data))
	}
	return p.Grad
}

// ZeroGrads zeros the gradients of all parameters. A program calls it before each training step.
func ZeroGrads(params []*Param) {
	for _, p := range params {
		p.ZeroGrad()
	}
}

// Count returns the total number of elements of the parameters.
func Count(params []*Param) (n int) {
	for _, p := range params {
		n += len(p.Data)
	}
	return n
}

// check returns an error if the parameter's shape is not [rows, columns], or if the length of Data
// does not match the shape. If rows is 0, the shape must be [columns].
func (p *Param) check(layer string, rows, columns int) error {
	if err := p.checkShape(layer, rows, columns); err != nil {
		return err
	}
	return p.checkData()
}

func (p *Param) checkShape(layer string, rows, columns int) error {
	switch {
	case p == nil:
		return problem(layer, "none", "the parameter is missing: the layer was not made by its New function")
	case rows == 0 && (len(p.Shape) != 1 || p.Shape[0] != columns):
		return problem(p.Name+".Shape", p.Shape, "must be [%d]", columns)
	case rows > 0 && (len(p.Shape) != 2 || p.Shape[0] != rows || p.Shape[1] != columns):
		return problem(p.Name+".Shape", p.Shape, "must be [%d %d]", rows, columns)
	}
	return nil
}

// checkData returns an error unless the length of Data matches the shape.
func (p *Param) checkData() error {
	if len(p.Data) != countOf(p.Shape) {
		return problem(p.Name+".Data.len", len(p.Data), "must be that of shape %v", p.Shape)
	}
	return nil
}

// An Init names and initializes the parameters of layers. Initial values depend only on the seed
// and the parameter's name. Errors are sticky: Err returns the first error. An Init shares this
// error with all Inits that its method In returns.
type Init struct {
	prefix string
	shared *initState
}

type initState struct {
	seed  uint64
	blank bool
	file  func(name string) (safetensors.Tensor, error) // nil unless made by FromFile or FromTensors
	err   error
}

// NewInit returns an Init that draws parameters from PyTorch's distributions: a linear layer's
// weights and bias are uniform in [-1/sqrt(in), 1/sqrt(in)), embeddings are normal. The drawn
// numbers differ from PyTorch's.
func NewInit(seed uint64) *Init { return &Init{shared: &initState{seed: seed}} }

// Blank returns an Init without random numbers, for models whose parameters will be loaded from a
// file. Parameters that NewInit would draw are 0. Parameters made by Constant, as in norms, have
// their constant value.
func Blank() *Init { return &Init{shared: &initState{blank: true}} }

// FromFile returns an Init for inference, whose parameters are the F32, F16 or BF16 tensors of f. If
// the machine can read an F32 tensor in place, Data aliases the memory of f, which must not change
// while the layers are in use. Otherwise Data is a copy. A tensor that is missing, or has another
// shape or type, is an error. Other tensors of f are ignored.
func FromFile(f *safetensors.File) *Init { return FromTensors(f.Require) }

// FromTensors is FromFile for tensors that the function returns when a layer needs them.
func FromTensors(tensor func(name string) (safetensors.Tensor, error)) *Init {
	return &Init{shared: &initState{file: tensor}}
}

// In returns an Init whose parameter names begin with the prefix of i, then name and a dot.
func (i *Init) In(name string) *Init { return &Init{i.prefix + name + ".", i.shared} }

// Err returns the first error, or nil.
func (i *Init) Err() error { return i.shared.err }

// Fail sets the error that Err returns, unless an error is already set.
func (i *Init) Fail(err error) {
	if i.shared.err == nil {
		i.shared.err = err
	}
}

// Uniform returns a parameter of uniform numbers in [-bound, bound). If a dimension is below 1,
// i.Err returns an error. This also holds for Normal and Constant.
func (i *Init) Uniform(name string, bound float64, shape ...int) *Param {
	return i.random(name, shape, func(r *rand.Rand) float64 { return bound * (2*r.Float64() - 1) })
}

// Normal returns a parameter of normally distributed numbers of mean 0 and the given standard
// deviation.
func (i *Init) Normal(name string, deviation float64, shape ...int) *Param {
	return i.random(name, shape, func(r *rand.Rand) float64 { return deviation * r.NormFloat64() })
}

func countOf(shape []int) int {
	n := 1
	for _, k := range shape {
		n *= k
	}
	return n
}

// Constant returns a parameter whose elements are x.
func (i *Init) Constant(name string, x float32, shape ...int) *Param {
	return i.param(name, shape, func(p *Param) {
		for j := range p.Data {
			p.Data[j] = x
		}
	})
}

// random returns a parameter of numbers from draw. The random generator is seeded with the Init's
// seed and a hash of the parameter's name.
func (i *Init) random(name string, shape []int, draw func(*rand.Rand) float64) *Param {
	return i.param(name, shape, func(p *Param) {
		if i.shared.blank {
			return
		}
		h := fnv.New64a()
		h.Write([]byte(p.Name))
		r := rand.New(rand.NewPCG(i.shared.seed, h.Sum64()))
		for j := range p.Data {
			p.Data[j] = float32(draw(r))
		}
	})
}

// param returns the file's tensor as a parameter. Without a file, param returns a new parameter and
// calls fill to set the elements.
func (i *Init) param(name string, shape []int, fill func(p *Param)) *Param {
	p := &Param{Name: i.prefix + name, Shape: shape}
	n := 1
	for d, k := range shape {
		if k < 1 || n > maxElements/k {
			i.Fail(problem(p.Name+".Shape", shape, "dimension %d must be at least 1, and the elements at most %d", d, maxElements))
			p.Shape = make([]int, len(shape))
			return p
		}
		n *= k
	}
	if i.shared.file == nil {
		p.Data = make([]float32, n)
		fill(p)
		return p
	}
	t, err := i.shared.file(p.Name)
	if err != nil {
		i.Fail(err)
		return p
	}
	data, err := tensorData(t, shape, "F32", "F16", "BF16")
	if err != nil {
		i.Fail(err)
	}
	p.Data = data
	return p
}
