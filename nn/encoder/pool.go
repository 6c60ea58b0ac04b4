package encoder

import (
	"math"

	"github.com/flashkit-go/flashkit/nn"
)

// A pooling is a way to compute one vector from the token vectors of a sequence.
type pooling func(dst []float32, x nn.Tensor, first, skip, n int)

// poolings has the poolings by their names in sentence-transformers. dst is the vector of a
// sequence with the rows [first, first+n) of x, without its first skip rows. An empty sequence has
// a zero vector.
var poolings = map[string]pooling{
	"cls": poolFirst, "lasttoken": poolLast, "max": poolMax,
	"mean": poolMean, "mean_sqrt_len_tokens": poolRootMean, "weightedmean": poolWeighted,
}

// poolingOrder is the order in which sentence-transformers concatenates the poolings that old
// settings select by a key each, such as pooling_mode_cls_token.
var poolingOrder = [...]struct{ key, name string }{
	{"pooling_mode_cls_token", "cls"}, {"pooling_mode_max_tokens", "max"}, {"pooling_mode_mean_tokens", "mean"},
	{"pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"}, {"pooling_mode_weightedmean_tokens", "weightedmean"},
	{"pooling_mode_lasttoken", "lasttoken"},
}

func poolFirst(dst []float32, x nn.Tensor, first, skip, n int) {
	if skip >= n {
		skip = 0
	}
	copyRow(dst, x, first+skip, n)
}

func poolLast(dst []float32, x nn.Tensor, first, skip, n int) {
	if skip >= n {
		clear(dst)
		return
	}
	copyRow(dst, x, first+n-1, n)
}

func copyRow(dst []float32, x nn.Tensor, i, n int) {
	if n == 0 {
		clear(dst)
		return
	}
	copy(dst, x.Row(i))
}

func poolMax(dst []float32, x nn.Tensor, first, skip, n int) {
	if n == 0 {
		clear(dst)
		return
	}
	for i := range dst {
		dst[i] = float32(math.Inf(-1))
	}
	for j := skip; j < n; j++ {
		for i, v := range x.Row(first + j) {
			dst[i] = max(dst[i], v)
		}
	}
}

// poolSum sets dst to the sum of the rows, each times its number from 1 if numbered is true. It
// returns the sum of the factors.
func poolSum(dst []float32, x nn.Tensor, first, skip, n int, numbered bool) float64 {
	clear(dst)
	count, weight := 0.0, float32(1)
	for j := skip; j < n; j++ {
		if numbered {
			weight = float32(j + 1)
		}
		count += float64(weight)
		for i, v := range x.Row(first + j)[:len(dst)] {
			dst[i] += weight * v
		}
	}
	return count
}

func poolMean(dst []float32, x nn.Tensor, first, skip, n int) {
	divide(dst, poolSum(dst, x, first, skip, n, false))
}

func poolRootMean(dst []float32, x nn.Tensor, first, skip, n int) {
	divide(dst, math.Sqrt(poolSum(dst, x, first, skip, n, false)))
}

func poolWeighted(dst []float32, x nn.Tensor, first, skip, n int) {
	divide(dst, poolSum(dst, x, first, skip, n, true))
}

// divide divides x by a number, which it raises to 1e-9 if it is less.
func divide(x []float32, by float64) {
	d := float32(max(by, 1e-9))
	for i := range x {
		x[i] /= d
	}
}

// A pool is a stage that pools sequences by one pooling or several, whose vectors it concatenates.
type pool struct {
	by          []pooling
	skipsPrompt bool // the tokens of a prompt are excluded
}

// readPooling reads the module Pooling's config.json, in its older and newer form.
func readPooling(c *config, hidden int) (*pool, error) {
	for _, key := range []string{"word_embedding_dimension", "embedding_dimension"} {
		if n := c.integer(key, hidden, 1); n != hidden {
			c.Refuse(key, "must be the model's hidden size, %d", hidden)
		}
	}
	var names []string
	for _, o := range poolingOrder {
		if c.flag(o.key, false) {
			names = append(names, o.name)
		}
	}
	if _, ok := c.Raw("pooling_mode"); ok {
		names = c.poolingMode()
	}
	if len(names) == 0 {
		names = []string{"mean"}
	}
	p := &pool{skipsPrompt: !c.flag("include_prompt", true)}
	for _, name := range names {
		f, ok := poolings[name]
		if !ok {
			c.Refuse("pooling_mode", "must be names among cls, lasttoken, max, mean, mean_sqrt_len_tokens and weightedmean")
		}
		p.by = append(p.by, f)
	}
	return p, c.Done()
}

// poolingMode returns the value of pooling_mode, which is a name or a list of names.
func (c *config) poolingMode() (names []string) {
	if x, _ := c.Raw("pooling_mode"); x[0] != '[' {
		return []string{c.text("pooling_mode", "")}
	}
	take(c, "pooling_mode", &names)
	if len(names) == 0 || len(names) > 2*len(poolings) {
		c.Refuse("pooling_mode", "must have at least one name")
	}
	return names
}

func (p *pool) width(features int) int { return features * len(p.by) }

func (p *pool) forward(s *nn.Step, x nn.Tensor, skip int) nn.Tensor {
	y := s.NewTensor(nn.Rows{Batch: x.Batch, T: 1}, p.width(x.Features))
	if s.Err() != nil {
		return y
	}
	if !p.skipsPrompt {
		skip = 0
	}
	for b := range x.Batch {
		first, n := int(x.Starts[b]), int(x.Starts[b+1]-x.Starts[b])
		for i, f := range p.by {
			f(y.Row(b)[i*x.Features:][:x.Features], x, first, min(skip, n), n)
		}
	}
	return y
}

// A normalize is a stage that divides rows by their Euclidean length.
type normalize struct{}

func (normalize) width(features int) int { return features }

func (normalize) forward(_ *nn.Step, x nn.Tensor, _ int) nn.Tensor {
	for i := range x.Count() {
		row, squares := x.Row(i), 0.0
		for _, v := range row {
			squares += float64(v) * float64(v)
		}
		scale := float32(1 / max(math.Sqrt(squares), 1e-12))
		for j := range row {
			row[j] *= scale
		}
	}
	return x
}
