package nn

import (
	"hash/fnv"
	"math"
	"math/rand/v2"

	"github.com/flashkit-go/flashkit/safetensors"
)

// maxElements bounds parameters, caches and tables of rotations. Where an int has 32 bits their bytes must be one.
const maxElements = min(math.MaxInt32, math.MaxInt/8)

// A Param is a parameter of a layer: weights that are read by Forward, and their gradient,
// which Backward adds to and an optimizer reads.
type Param struct {
	Name  string // such as "layers.0.attention.q.weight"
	Shape []int
	Data  []float32 // row-major
	Grad  []float32 // of the size of Data once there is one; nil before

	version uint64 // raised by every change of Data, so that packed copies are made anew
}

// Changed says that Data has been written to. The optimizers and Load say it themselves.
// It must not be called, nor Data written to, while a pass runs.
func (p *Param) Changed() { p.version++ }

// ZeroGrad sets the gradient to 0, and makes one if there is none.
func (p *Param) ZeroGrad() { clear(p.grad()) }

// grad returns the gradient, of zeros at first.
func (p *Param) grad() []float32 {
	if len(p.Grad) != len(p.Data) {
		p.Grad = make([]float32, len(p.Data))
	}
	return p.Grad
}

// ZeroGrads sets the gradients of all parameters to 0, as before each step of training.
func ZeroGrads(params []*Param) {
	for _, p := range params {
		p.ZeroGrad()
	}
}

// Count returns the number of elements of all parameters.
func Count(params []*Param) (n int) {
	for _, p := range params {
		n += len(p.Data)
	}
	return n
}

// check returns what is wrong with a parameter that must be [rows, columns], or [columns]
// if rows is 0.
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

// checkData refuses data that does not fill a shape which checkShape has accepted.
func (p *Param) checkData() error {
	if len(p.Data) != countOf(p.Shape) {
		return problem(p.Name+".Data.len", len(p.Data), "must be that of shape %v", p.Shape)
	}
	return nil
}

// An Init makes the parameters of layers: it gives them names and first values. What a
// parameter gets depends on the seed and on its name alone. A layer that cannot be made is
// an error, which sticks: Err returns the first one, of all that In returned too.
type Init struct {
	prefix string
	shared *initState
}

type initState struct {
	seed  uint64
	blank bool
	file  *safetensors.File // nil: parameters are made
	err   error
}

// NewInit returns an Init that draws as PyTorch does: a linear layer's weights and bias are
// uniform within 1/sqrt(in), embeddings normal. The numbers are not PyTorch's.
func NewInit(seed uint64) *Init { return &Init{shared: &initState{seed: seed}} }

// Blank returns an Init whose parameters are 0 but for those of norms, for models that are
// loaded from a file at once.
func Blank() *Init { return &Init{shared: &initState{blank: true}} }

// FromFile returns an Init for inference, whose parameters are the F32 tensors of a file. Where
// the machine can read a tensor in place, Data is the file's memory: nothing may change it while
// the layers are in use. A tensor that is missing, or of another shape or type, is an error;
// tensors that no layer asks for are ignored.
func FromFile(f *safetensors.File) *Init { return &Init{shared: &initState{file: f}} }

// In returns an Init whose names begin with name and a dot.
func (i *Init) In(name string) *Init { return &Init{i.prefix + name + ".", i.shared} }

// Err returns the error of the first layer that could not be made, or nil.
func (i *Init) Err() error { return i.shared.err }

// Fail makes err the error, if there is none yet.
func (i *Init) Fail(err error) {
	if i.shared.err == nil {
		i.shared.err = err
	}
}

// Uniform returns a parameter of numbers from -bound to bound.
func (i *Init) Uniform(name string, bound float64, shape ...int) *Param {
	return i.random(name, shape, func(r *rand.Rand) float64 { return bound * (2*r.Float64() - 1) })
}

// Normal returns a parameter of normally distributed numbers of mean 0.
func (i *Init) Normal(name string, deviation float64, shape ...int) *Param {
	return i.random(name, shape, func(r *rand.Rand) float64 { return deviation * r.NormFloat64() })
}

// countOf returns the number of elements of a shape.
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

// random returns a parameter of random numbers, whose stream is the hash of its name.
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

// param returns a parameter that a file has, or one that fill sets, of zeros before.
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
	t, err := i.shared.file.Require(p.Name)
	if err != nil {
		i.Fail(err)
		return p
	}
	data, err := tensorData(t, shape)
	if err != nil {
		i.Fail(err)
	}
	p.Data = data
	return p
}
