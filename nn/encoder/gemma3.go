package encoder

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/nn"
)

// loadGemma3 reads a Gemma3TextModel as a decoder. A missing key has the default of transformers'
// Gemma3TextConfig. In embedding models a token sees the tokens on both sides.
func loadGemma3(c *config, w *nn.Init, p nn.Precision) (family, error) {
	m := &decoderConfig{
		size:    shape{rotary: true, hidden: c.integer("hidden_size", 2304, 1), vocab: c.integer("vocab_size", 262208, 1), positions: c.integer("max_position_embeddings", 131072, 1)},
		between: c.integer("intermediate_size", 9216, 1), layers: c.integer("num_hidden_layers", 26, 0), dim: c.integer("head_dim", 256, 1),
		eps: c.number("rms_norm_eps", 1e-6), offset: 1, bias: c.flag("attention_bias", false), act: c.activation("hidden_activation", "gelu_pytorch_tanh"),
		scale:    float32(1 / math.Sqrt(c.positive("query_pre_attn_scalar", 256))),
		sandwich: true, feedIn: "pre_feedforward_layernorm", precision: p,
	}
	m.readHeads(c, 8, 4)
	window, every := c.windowOf("sliding_window", 4096), c.integer("sliding_window_pattern", 6, 1)
	m.kinds = c.layerKinds(m.layers, func(i int) bool { return (i+1)%max(every, 1) != 0 })
	if window == 0 {
		c.Refuse("sliding_window", "must be at least 1")
	}
	if c.Has("use_bidirectional_attention") && c.flag("use_bidirectional_attention", false) {
		// The file has the window's size of both sides.
		m.bands[1] = flashkit.Window(window/2, window/2)
	} else {
		m.bands = [2]flashkit.Band{flashkit.Causal(), flashkit.Window(window-1, 0)}
	}
	m.readRotaries(c)
	c.Only("attn_logit_softcapping", "null")
	c.Ignore("attention_dropout", "final_logit_softcapping", "_sliding_window_pattern")
	if err := c.Done(harmlessKeys...); err != nil {
		return nil, err
	}
	x, err := m.load(c, w)
	if err == nil {
		x.(*decoder).scale, x.(*decoder).bothSides = float32(math.Sqrt(float64(m.size.hidden))), m.bands[0] == flashkit.Band{}
	}
	return x, err
}

// readRotaries reads the rotations of layers that see all tokens, and of layers with a window.
func (m *decoderConfig) readRotaries(c *config) {
	global, local := c.ropesOf()
	if c.Has("rope_scaling") { // of files before rope_parameters, for layers that see all tokens
		if len(global.Unread()) > 0 {
			c.Refuse("rope_scaling", "must not stand beside rope_parameters")
		}
		global = c.object("rope_scaling")
	}
	m.rotaries[0] = c.rotary(global, m.dim, m.size.positions, c.number("rope_theta", 1e6))
	m.rotaries[1] = c.rotary(local, m.dim, m.size.positions, c.number("rope_local_base_freq", 10000))
}
