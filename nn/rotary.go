package nn

import (
	"fmt"
	"math"
)

// A Rotary rotates pairs of features of each head by angles proportional to the row's position. A
// Rotary is safe for concurrent use.
//
// Source: Su et al., RoFormer: enhanced transformer with rotary position embedding, 2021.
type Rotary struct {
	dim, positions int
	interleaved    bool
	cos, sin       []float32 // [positions, dim/2]
}

// NewRotary returns a Rotary for the first dim features of each head and positions in [0,
// positions). Pair i is rotated by the angle position / base^(2i/dim); base is usually 10000. Pair
// i is features i and i + dim/2, as in LLaMA's and GPT-NeoX's published models. If interleaved,
// pair i is features 2i and 2i+1, as in the paper. dim must be even. The tables of sines and
// cosines take 4 * positions * dim bytes.
func NewRotary(positions, dim int, base float64, interleaved bool) (*Rotary, error) {
	switch {
	case dim < 2 || dim%2 != 0:
		return nil, problem("Rotary: dim", dim, "must be even and at least 2")
	case positions < 1 || positions > maxElements/dim:
		return nil, problem("Rotary: positions", positions, "must be at least 1, and times dim = %d at most %d", dim, maxElements)
	case !(base > 0) || math.IsInf(base, 1):
		return nil, problem("Rotary: base", base, "must be above 0 and finite")
	}
	half := dim / 2
	r := &Rotary{dim, positions, interleaved, make([]float32, positions*half), make([]float32, positions*half)}
	for p := range positions {
		for i := range half {
			sin, cos := math.Sincos(float64(p) * math.Pow(base, -float64(i)/float64(half)))
			r.cos[p*half+i], r.sin[p*half+i] = float32(cos), float32(sin)
		}
	}
	return r, nil
}

// Forward returns x, [rows, heads * head dim], rotated. Each sequence starts at position 0. Forward
// pushes no record: Backward needs only dy.
func (r *Rotary) Forward(s *Step, x Tensor, heads int) Tensor { return r.rotate(s, x, heads, nil, 1) }

// ForwardFrom returns Forward's result for continued sequences: the first row of sequence b has
// position from[b]. If from is nil, sequences start at position 0. ForwardFrom is for inference.
func (r *Rotary) ForwardFrom(s *Step, x Tensor, heads int, from []int32) Tensor {
	return r.rotate(s, x, heads, from, 1)
}

// Backward returns the gradient of x, given dy, the gradient of Forward's result. This gradient is
// dy, rotated by the negative angles.
func (r *Rotary) Backward(s *Step, dy Tensor, heads int) Tensor {
	return r.rotate(s, dy, heads, nil, -1)
}

func (r *Rotary) rotate(s *Step, x Tensor, heads int, from []int32, sign float32) Tensor {
	if !s.accepts("Rotary", "x", &x, 0, nil) || !s.ok(r.check(&x, heads, from)) {
		return Tensor{}
	}
	y := s.NewTensor(x.Rows, x.Features)
	for i := range x.Count() {
		copy(y.Row(i), x.Row(i))
	}
	first, second, step := 0, r.dim/2, 1
	if r.interleaved {
		second, step = 1, 2
	}
	half := r.dim / 2
	for b := range x.Batch {
		row, n, rows := x.sequence(b)
		for i := range n {
			at := (start(from, b) + i) * half
			cos, sin := r.cos[at:][:half], r.sin[at:][:half]
			features := y.Row(row + i*rows)
			for h := 0; h < len(features); h += x.Features / heads {
				for j := range half {
					u, v := &features[h+first+j*step], &features[h+second+j*step]
					*u, *v = *u*cos[j]-*v*sin[j]*sign, *v*cos[j]+*u*sin[j]*sign
				}
			}
		}
	}
	return y
}

func (r *Rotary) check(x *Tensor, heads int, from []int32) error {
	switch {
	case r == nil || r.dim == 0:
		return problem("Rotary", "none", "was not made by NewRotary")
	case heads < 1 || x.Features%heads != 0:
		return problem("Rotary: heads", heads, "must divide Features = %d", x.Features)
	case x.Features/heads < r.dim:
		return problem("Rotary: x.Features", x.Features, "are %d for each of %d heads, and %d are turned", x.Features/heads, heads, r.dim)
	case from != nil && len(from) != x.Batch:
		return problem("Rotary: from.len", len(from), "must be Batch = %d", x.Batch)
	}
	for b := range x.Batch {
		_, n, _ := x.sequence(b)
		if at := start(from, b); at < 0 || at > r.positions-n {
			return problem(fmt.Sprintf("Rotary: rows of sequence %d", b), n, "from position %d on are beyond the %d positions that there are", at, r.positions)
		}
	}
	return nil
}
