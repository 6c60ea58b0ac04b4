package bert

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/matmul"
)

// A Config is the shape of a model. ParseConfig reads one.
type Config struct {
	Vocab        int     // tokens of the vocabulary
	Hidden       int     // features of a row, a multiple of Heads
	Layers       int     // may be 0
	Heads        int     // of attention
	Intermediate int     // features between the two products of a layer
	Positions    int     // tokens of the longest sequence
	Types        int     // token types
	Eps          float64 // of the layer norms, added to the variance; at least 0
	Activation   string  // between the two products: gelu (by erf), gelu_new (by tanh) or relu
	Precision    string  // of the products of layers: f32, or empty; bf16-weights or bf16. Files have none
}

// precisions are what the products of layers multiply: float32; weights that are rounded to
// bf16, in half the memory, on any processor; rows rounded to bf16, too, which is fast by AMX or
// AVX512-BF16 and the same but for the last bits by others. Sums, and all else, are float32.
var precisions = map[string]matmul.Precision{
	"": matmul.Float32, "f32": matmul.Float32, "bf16-weights": matmul.BF16Weights, "bf16": matmul.BF16,
}

// activations has the names of Hugging Face.
var activations = map[string]matmul.Activation{
	"gelu": matmul.GELU, "gelu_new": matmul.GELUTanh, "gelu_pytorch_tanh": matmul.GELUTanh, "relu": matmul.ReLU,
}

// ParseConfig reads the config.json of a model, in the names of Hugging Face. It refuses a
// model that this package would compute wrong.
func ParseConfig(file []byte) (Config, error) {
	var c struct {
		Type         string  `json:"model_type"`
		Vocab        int     `json:"vocab_size"`
		Hidden       int     `json:"hidden_size"`
		Layers       int     `json:"num_hidden_layers"`
		Heads        int     `json:"num_attention_heads"`
		Intermediate int     `json:"intermediate_size"`
		Positions    int     `json:"max_position_embeddings"`
		Types        int     `json:"type_vocab_size"`
		Eps          float64 `json:"layer_norm_eps"`
		Activation   string  `json:"hidden_act"`
		Embedding    string  `json:"position_embedding_type"`
		Decoder      bool    `json:"is_decoder"`
	}
	c.Eps, c.Embedding = 1e-12, "absolute"
	if err := json.Unmarshal(file, &c); err != nil {
		return Config{}, fmt.Errorf("bert: config: %w", err)
	}
	switch {
	case c.Type != "bert":
		return Config{}, problem("model_type", fmt.Sprintf("%.40q", c.Type), `must be "bert"`)
	case c.Embedding != "absolute":
		return Config{}, problem("position_embedding_type", fmt.Sprintf("%.40q", c.Embedding), `must be "absolute"`)
	case c.Decoder:
		return Config{}, problem("is_decoder", c.Decoder, "must be false")
	}
	x := Config{c.Vocab, c.Hidden, c.Layers, c.Heads, c.Intermediate, c.Positions, c.Types, c.Eps, c.Activation, ""}
	return x, x.check()
}

// check bounds each dimension, so that no product of two overflows.
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
