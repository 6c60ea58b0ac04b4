package encoder

import (
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit/nn"
)

// A stage is a step between the hidden states and the results.
type stage interface {
	// forward returns the stage's result. It may change x.
	forward(s *nn.Step, x nn.Tensor, skip int) nn.Tensor
	width(features int) int // features of the result
}

// A chain is stages that follow each other. The first stage computes a row for each sequence.
type chain struct {
	stages []stage
	hidden int
}

func (c *chain) forward(s *nn.Step, x nn.Tensor, skip int) nn.Tensor {
	for _, stage := range c.stages {
		if x = stage.forward(s, x, skip); s.Err() != nil {
			return nn.Tensor{}
		}
	}
	return x
}

func (c *chain) perToken() bool { return false }

func (c *chain) width() int {
	n := c.hidden
	for _, stage := range c.stages {
		n = stage.width(n)
	}
	return n
}

// functions are PyTorch's activation classes, with their default arguments, by their names within
// torch.nn.
var functions = map[string]func(float64) float64{
	"Identity":  nil,
	"Tanh":      math.Tanh,
	"ReLU":      func(x float64) float64 { return max(x, 0) },
	"GELU":      func(x float64) float64 { return x * math.Erfc(-x/math.Sqrt2) / 2 },
	"Sigmoid":   sigmoid,
	"SiLU":      func(x float64) float64 { return x * sigmoid(x) },
	"LeakyReLU": func(x float64) float64 { return max(x, 0.01*x) },
	"ELU":       func(x float64) float64 { return max(x, 0) + math.Expm1(min(x, 0)) },
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// function returns the activation function whose PyTorch class a key names, such as
// torch.nn.modules.activation.Tanh. nil is the identity.
func (c *config) function(key, otherwise string) func(float64) float64 {
	name := c.text(key, otherwise)
	f, ok := functions[name[strings.LastIndexByte(name, '.')+1:]]
	if !ok || !strings.HasPrefix(name, "torch.nn.") {
		c.Refuse(key, "must be one of torch.nn: %s", strings.Join(slices.Sorted(maps.Keys(functions)), ", "))
	}
	return f
}

// apply sets each element to its image.
func apply(f func(float64) float64, x nn.Tensor) nn.Tensor {
	if f != nil {
		for i := range x.Count() {
			row := x.Row(i)
			for j, v := range row {
				row[j] = float32(f(float64(v)))
			}
		}
	}
	return x
}

// A dense is a linear layer with an activation and, if residual is not nil, a residual connection.
type dense struct {
	linear   *nn.Linear
	function func(float64) float64
	through  bool       // the input is added to the result
	residual *nn.Linear // nil: the input is added as it is
}

func (d *dense) width(int) int { return d.linear.Weight.Shape[0] }

func (d *dense) forward(s *nn.Step, x nn.Tensor, _ int) nn.Tensor {
	y := d.linear.Forward(s, x)
	if s.Err() != nil {
		return y
	}
	y = apply(d.function, y)
	switch {
	case !d.through:
		return y
	case d.residual != nil:
		return d.residual.ForwardAdd(s, x, y)
	}
	return s.Add(y, x)
}

// A layerNorm is the module LayerNorm.
type layerNorm struct{ *nn.LayerNorm }

func (l layerNorm) width(features int) int { return features }

func (l layerNorm) forward(s *nn.Step, x nn.Tensor, _ int) nn.Tensor { return l.Forward(s, x) }

// A truncated is a stage that keeps the first features.
type truncated int

func (t truncated) width(features int) int { return min(int(t), features) }

func (t truncated) forward(s *nn.Step, x nn.Tensor, _ int) nn.Tensor {
	y := s.NewTensor(x.Rows, t.width(x.Features))
	for i := range y.Count() {
		copy(y.Row(i), x.Row(i))
	}
	return y
}

// readDense reads the module Dense, for vectors of the given number of features.
func readDense(dir string, c *config, features int) (stage, error) {
	in, out, bias := c.integer("in_features", features, 1), c.integer("out_features", features, 1), c.flag("bias", true)
	if in != features {
		c.Refuse("in_features", "must be the features of the module before it, %d", features)
	}
	for _, key := range []string{"in_features", "out_features"} {
		if _, ok := c.Raw(key); !ok {
			c.Refuse(key, "the key is missing")
		}
	}
	d := &dense{function: c.function("activation_function", "torch.nn.modules.activation.Tanh"), through: c.flag("use_residual", false)}
	c.sentenceOnly()
	if err := c.Done(); err != nil {
		return nil, err
	}
	w, err := openWeights(dir, "")
	if err != nil {
		return nil, err
	}
	defer w.close()
	i := nn.FromTensors(w.require)
	d.linear = nn.NewLinear(i.In("linear"), in, out, bias)
	if d.through && in != out {
		d.residual = nn.NewLinear(i.In("residual"), in, out, false)
	}
	return d, within(dir, i.Err())
}

// readLayerNorm reads the module LayerNorm.
func readLayerNorm(dir string, c *config, features int) (stage, error) {
	if c.integer("dimension", 0, 1) != features {
		c.Refuse("dimension", "must be the features of the module before it, %d", features)
	}
	if err := c.Done(); err != nil {
		return nil, err
	}
	w, err := openWeights(dir, "")
	if err != nil {
		return nil, err
	}
	defer w.close()
	i := nn.FromTensors(w.require)
	l := nn.NewLayerNorm(i.In("norm"), features)
	return layerNorm{l}, within(dir, i.Err())
}

// sentenceOnly requires that a module reads and writes the sentence's vector.
func (c *config) sentenceOnly() {
	c.Only("module_input_name", `"sentence_embedding"`)
	c.Only("module_output_name", `"sentence_embedding"`, "null")
}

// readModule reads a module that follows Pooling, from its folder. It returns nil for a module
// without effect.
func readModule(dir, name string, features int) (stage, error) {
	c, _, err := openConfig(dir, "config.json")
	if err != nil {
		return nil, err
	}
	switch name {
	case "Dense":
		return readDense(dir, c, features)
	case "LayerNorm":
		return readLayerNorm(dir, c, features)
	case "Normalize":
		c.sentenceOnly()
		return normalize{}, c.Done()
	}
	c.number("dropout", 0)
	return nil, c.Done()
}

// afterPooling are the modules that may follow Pooling.
var afterPooling = []string{"Dense", "Dropout", "LayerNorm", "Normalize"}

// readChain reads the modules after the Transformer.
func readChain(dir string, list []module, hidden int) (*chain, error) {
	ch := &chain{hidden: hidden}
	for i, m := range list {
		where := filepath.Join(dir, m.path)
		if i == 0 {
			c, found, err := openConfig(where, "config.json")
			if err != nil {
				return nil, err
			}
			if !found {
				return nil, c.Problem("", nil, "the file is missing, and modules.json names its folder")
			}
			p, err := readPooling(c, hidden)
			if err != nil {
				return nil, err
			}
			ch.stages = append(ch.stages, p)
			continue
		}
		s, err := readModule(where, m.name, ch.width())
		if err != nil {
			return nil, err
		}
		if s != nil {
			ch.stages = append(ch.stages, s)
		}
	}
	return ch, nil
}
