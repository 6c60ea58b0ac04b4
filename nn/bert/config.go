package bert

import (
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/nn"
)

// A Config is the shape of a model and the number type of its matrix products. ParseConfig reads a
// Config from a file.
type Config struct {
	Vocab        int     // tokens of the vocabulary
	Hidden       int     // features of a row, a multiple of Heads
	Layers       int     // number of layers; may be 0
	Heads        int     // attention heads
	Intermediate int     // features between the two feed-forward products of a layer
	Positions    int     // tokens of the longest sequence
	Types        int     // number of token types
	Eps          float64 // added to the variance in layer norms; at least 0
	Activation   string  // between the two feed-forward products: gelu (by erf), gelu_new or gelu_pytorch_tanh (by tanh), relu
	Precision    string  // type of the products' factors: f32 or empty, bf16-weights, bf16. Not read from files
}

// precisions are the number types of the factors of matrix products. bf16-weights halves the
// weights' memory on any processor. bf16 also rounds the rows that the weights multiply. bf16 is
// fast with AMX or AVX512-BF16. Other processors give the same results up to the last bits. Sums
// and all other numbers are float32.
var precisions = map[string]nn.Precision{
	"": nn.Float32, "f32": nn.Float32, "bf16-weights": nn.BF16Weights, "bf16": nn.BF16,
}

// activations maps Hugging Face's names to activations.
var activations = map[string]nn.Activation{
	"gelu": nn.GELU, "gelu_new": nn.GELUTanh, "gelu_pytorch_tanh": nn.GELUTanh, "relu": nn.ReLU,
}

// check returns an error if c is invalid. It limits each dimension, so that no product of two
// dimensions overflows.
func (c *Config) check() error {
	for _, d := range [...]struct {
		name         string
		value, least int
	}{
		{"Vocab", c.Vocab, 1}, {"Hidden", c.Hidden, 1}, {"Layers", c.Layers, 0}, {"Heads", c.Heads, 1},
		{"Intermediate", c.Intermediate, 1}, {"Positions", c.Positions, 1}, {"Types", c.Types, 1},
	} {
		if d.value < d.least || d.value > math.MaxInt32 {
			return problem("Config."+d.name, d.value, "must be from %d to %d", d.least, math.MaxInt32)
		}
	}
	if c.Hidden%c.Heads != 0 {
		return problem("Config.Heads", c.Heads, "must divide Hidden = %d", c.Hidden)
	}
	if !(c.Eps >= 0 && c.Eps <= math.MaxFloat32) {
		return problem("Config.Eps", c.Eps, "must be at least 0, and finite")
	}
	if _, ok := activations[c.Activation]; !ok {
		return problem("Config.Activation", fmt.Sprintf("%.40q", c.Activation), "must be gelu, gelu_new or relu")
	}
	if _, ok := precisions[c.Precision]; !ok {
		return problem("Config.Precision", fmt.Sprintf("%.40q", c.Precision), "must be f32, bf16-weights or bf16")
	}
	return nil
}

func problem(field string, value any, format string, args ...any) error {
	return &flashkit.ProblemError{Field: field, Value: fmt.Sprint(value), Reason: fmt.Sprintf(format, args...)}
}
