package encoder

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/nn"
)

// loadQwen3 reads a Qwen3Model. A missing key has the default of transformers' Qwen3Config.
func loadQwen3(c *config, w *nn.Init, p nn.Precision) (family, error) {
	m := &decoderConfig{
		size:    shape{rotary: true, hidden: c.integer("hidden_size", 4096, 1), vocab: c.integer("vocab_size", 151936, 1), positions: c.integer("max_position_embeddings", 32768, 1)},
		between: c.integer("intermediate_size", 22016, 1), layers: c.integer("num_hidden_layers", 32, 0), dim: c.integer("head_dim", 128, 1),
		eps: c.number("rms_norm_eps", 1e-6), bias: c.flag("attention_bias", false), act: c.activation("hidden_act", "silu"),
		bands: [2]flashkit.Band{flashkit.Causal()}, feedIn: "post_attention_layernorm", precision: p,
	}
	m.readHeads(c, 32, 32)
	window := c.windowOf("sliding_window", 4096)
	if !c.flag("use_sliding_window", false) {
		window = 0
	}
	from := c.integer("max_window_layers", 28, 0)
	m.kinds = c.layerKinds(m.layers, func(i int) bool { return window > 0 && i >= from })
	m.bands[1] = flashkit.Window(window-1, 0)
	for _, local := range m.kinds {
		if local && window == 0 {
			c.Refuse("layer_types", "sliding_attention needs use_sliding_window and sliding_window")
			break
		}
	}
	r, theta := c.ropeOf(10000)
	m.rotaries[0] = c.rotary(r, m.dim, m.size.positions, theta)
	m.rotaries[1] = m.rotaries[0]
	c.Ignore("attention_dropout")
	if err := c.Done(harmlessKeys...); err != nil {
		return nil, err
	}
	return m.load(c, w)
}
