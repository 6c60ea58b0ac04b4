package encoder

import (
	"encoding/json"
	"math"

	"github.com/flashkit-go/flashkit/internal/strict"
	"github.com/flashkit-go/flashkit/nn"
)

// rotary reads the object of rope parameters r and returns the rotation of heads of dim features. In
// an object without rope_theta, the base is theta. The numbers are rounded to float32 where
// transformers rounds them. If a key fails, rotary returns nil.
func (c *config) rotary(r *config, dim, positions int, theta float64) *nn.Rotary {
	kind := r.text("rope_type", r.text("type", "default"))
	theta = r.number("rope_theta", theta)
	r.Only("partial_rotary_factor", "1", "1.0", "null")
	frequencies := make([]float32, dim/2)
	for i := range frequencies {
		frequencies[i] = 1 / float32(math.Pow(float64(float32(theta)), float64(float32(2*i)/float32(dim))))
	}
	scale := 1.0
	switch kind {
	case "default":
	case "linear":
		factor := float32(r.positive("factor", 0))
		for i := range frequencies {
			frequencies[i] /= factor
		}
	case "yarn":
		scale = r.yarn(frequencies, positions, theta)
	case "llama3":
		r.llama3(frequencies, positions)
	default:
		r.Refuse("rope_type", "must be default, linear, yarn or llama3")
	}
	if c.Err != nil {
		return nil
	}
	rotary, err := nn.NewScaledRotary(positions, frequencies, scale)
	if err != nil && c.Err == nil {
		c.Err = err
	}
	return rotary
}

// positive returns a finite number above 0.
func (c *config) positive(key string, otherwise float64) float64 {
	x := c.number(key, otherwise)
	if x == 0 {
		c.Refuse(key, "must be above 0")
	}
	return x
}

// yarn stretches the frequencies of few rotations, and returns the factor of sines and cosines.
//
// Source: Peng et al., YaRN: efficient context window extension of large language models, 2023.
func (c *config) yarn(frequencies []float32, positions int, theta float64) float64 {
	original := float64(c.integer("original_max_position_embeddings", positions, 1))
	factor := c.positive("factor", 0)
	fast, slow := c.positive("beta_fast", 32), c.positive("beta_slow", 1)
	mscale, all := c.number("mscale", 0), c.number("mscale_all_dim", 0)
	dim := float64(2 * len(frequencies))
	at := func(rotations float64) float64 {
		return dim * math.Log(original/(rotations*2*math.Pi)) / (2 * math.Log(theta))
	}
	low, high := at(fast), at(slow)
	if c.flag("truncate", true) {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, dim-1)
	if low == high {
		high += .001
	}
	for i, f := range frequencies {
		ramp := min(max((float32(i)-float32(low))/float32(high-low), 0), 1)
		keep := 1 - ramp
		frequencies[i] = 1/(float32(factor)*(1/f))*(1-keep) + f*keep
	}
	of := func(m float64) float64 {
		if factor <= 1 {
			return 1
		}
		return 0.1*m*math.Log(factor) + 1
	}
	if x, ok := c.Raw("attention_factor"); ok && string(x) != "null" {
		return c.positive("attention_factor", 1)
	}
	c.Only("attention_factor", "null")
	if mscale != 0 && all != 0 {
		return of(mscale) / of(all)
	}
	return of(1)
}

// llama3 stretches the frequencies of long waves.
func (c *config) llama3(frequencies []float32, positions int) {
	original := float32(c.integer("original_max_position_embeddings", positions, 1))
	factor := float32(c.positive("factor", 0))
	low, high := float32(c.positive("low_freq_factor", 0)), float32(c.positive("high_freq_factor", 0))
	for i, f := range frequencies {
		switch wave := 2 * math.Pi / f; {
		case wave > original/low:
			frequencies[i] = f / factor
		case wave >= original/high:
			smooth := (original/wave - low) / (high - low)
			frequencies[i] = (1-smooth)*f/factor + smooth*f
		}
	}
}

// ropeOf returns the object of rope parameters of a model whose layers all rotate alike. As in
// transformers, rope_scaling goes before rope_parameters, and rope_theta is for an object without it.
func (c *config) ropeOf(theta float64) (*config, float64) {
	theta = c.number("rope_theta", theta)
	for _, key := range []string{"rope_scaling", "rope_parameters"} {
		if x, _ := c.Raw(key); c.Has(key) && strict.Compact(x) != "{}" {
			if other := "rope_parameters"; key == "rope_scaling" && c.Has(other) {
				c.Refuse(other, "must not stand beside rope_scaling")
			}
			return c.object(key), theta
		}
		c.Ignore(key)
	}
	return newConfigIn(c, "rope_parameters"), theta
}

// ropesOf returns the objects of rope parameters of global and local layers.
func (c *config) ropesOf() (global, local *config) {
	r := c.object("rope_parameters")
	return r.object("full_attention"), r.object("sliding_attention")
}

// newConfigIn returns an object of c without keys.
func newConfigIn(c *config, key string) *config {
	return &config{Object: c.File.Object(c.At(key), json.RawMessage("{}"), c.Depth+1)}
}

// layerKinds reads layer_types and reports for each of n layers whether its attention is a window.
// Without the key, the function otherwise decides.
func (c *config) layerKinds(n int, otherwise func(i int) bool) []bool {
	if !c.Has("layer_types") {
		c.Ignore("layer_types")
		kinds := make([]bool, n)
		for i := range kinds {
			kinds[i] = otherwise(i)
		}
		return kinds
	}
	names := valueOf[[]string](c, "layer_types", nil)
	kinds := make([]bool, len(names))
	for i, name := range names {
		kinds[i] = name == "sliding_attention"
		if name != "sliding_attention" && name != "full_attention" {
			c.Refuse("layer_types", "must be full_attention or sliding_attention for each layer")
		}
	}
	if len(kinds) != n {
		c.Refuse("layer_types", "must be of %d layers", n)
	}
	return kinds
}
