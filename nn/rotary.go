package nn

import (
	"fmt"
	"math"
	"sort"
	"sync"
	"sync/atomic"
)

// A Rotary rotates pairs of features of each head by angles proportional to the row's position. A
// Rotary is safe for concurrent use.
//
// Source: Su et al., RoFormer: enhanced transformer with rotary position embedding, 2021.
type Rotary struct {
	dim, positions int
	interleaved    bool
	angle          func(position, pair int) float64
	scale          float64

	mu    sync.Mutex
	table atomic.Pointer[rotation] // of the positions so far
}

// A rotation is the cosines and sines of the first positions.
type rotation struct {
	positions int
	cos, sin  []float32 // [positions, dim/2]
}

// leastPositions is the number of positions of the smallest rotation.
const leastPositions = 512

// NewRotary returns a Rotary for the first dim features of each head and positions in [0,
// positions). Pair i is rotated by the angle position / base^(2i/dim); base is usually 10000. Pair
// i is features i and i + dim/2, as in LLaMA's and GPT-NeoX's published models. If interleaved,
// pair i is features 2i and 2i+1, as in the paper. dim must be even. The tables of sines and
// cosines take at most 8 * dim bytes for each position of the longest sequence so far.
func NewRotary(positions, dim int, base float64, interleaved bool) (*Rotary, error) {
	switch {
	case dim < 2 || dim%2 != 0:
		return nil, problem("Rotary: dim", dim, "must be even and at least 2")
	case !(base > 0) || math.IsInf(base, 1):
		return nil, problem("Rotary: base", base, "must be above 0 and finite")
	}
	half := dim / 2
	frequencies := make([]float64, half)
	for i := range frequencies {
		frequencies[i] = math.Pow(base, -float64(i)/float64(half))
	}
	angle := func(position, i int) float64 { return float64(position) * frequencies[i] }
	return newRotary(&Rotary{dim: dim, positions: positions, interleaved: interleaved, angle: angle, scale: 1})
}

// NewScaledRotary returns a Rotary that rotates pair i, features i and i + len(frequencies), by the
// angle position * frequencies[i]. It multiplies the rotated features by scale, usually 1. Published
// models stretch their positions by such frequencies. As in these models' own code, the angle is
// rounded to float32, which differs from the exact angle at positions above some thousands.
func NewScaledRotary(positions int, frequencies []float32, scale float64) (*Rotary, error) {
	if len(frequencies) == 0 {
		return nil, problem("Rotary: frequencies.len", 0, "must be at least 1")
	}
	for i, f := range frequencies {
		if f-f != 0 {
			return nil, problem(fmt.Sprintf("Rotary: frequencies[%d]", i), f, "must be finite")
		}
	}
	if scale-scale != 0 {
		return nil, problem("Rotary: scale", scale, "must be finite")
	}
	own := append([]float32(nil), frequencies...)
	angle := func(position, i int) float64 { return float64(float32(position) * own[i]) }
	return newRotary(&Rotary{dim: 2 * len(own), positions: positions, angle: angle, scale: scale})
}

func newRotary(r *Rotary) (*Rotary, error) {
	if r.positions < 1 || r.positions > maxElements/r.dim {
		return nil, problem("Rotary: positions", r.positions, "must be at least 1, and times dim = %d at most %d", r.dim, maxElements)
	}
	r.table.Store(new(rotation))
	return r, nil
}

// upTo returns a rotation of at least n positions. It makes one if needed, of at least twice the
// positions so far.
func (r *Rotary) upTo(n int) *rotation {
	if t := r.table.Load(); n <= t.positions {
		return t
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.table.Load()
	if n <= old.positions {
		return old
	}
	half := r.dim / 2
	t := &rotation{positions: min(max(n, 2*old.positions, leastPositions), r.positions)}
	t.cos, t.sin = make([]float32, t.positions*half), make([]float32, t.positions*half)
	copy(t.cos, old.cos)
	copy(t.sin, old.sin)
	for p := old.positions; p < t.positions; p++ {
		for i := range half {
			sin, cos := math.Sincos(r.angle(p, i))
			t.cos[p*half+i], t.sin[p*half+i] = float32(cos*r.scale), float32(sin*r.scale)
		}
	}
	r.table.Store(t)
	return t
}

// Forward returns x, [rows, heads * head dim], rotated. Each sequence starts at position 0. Forward
// pushes no record: Backward needs only dy.
func (r *Rotary) Forward(s *Step, x Tensor, heads int) Tensor { return r.copyOf(s, x, heads, nil, 1) }

// ForwardFrom returns Forward's result for continued sequences: the first row of sequence b has
// position from[b]. If from is nil, sequences start at position 0. ForwardFrom is for inference.
func (r *Rotary) ForwardFrom(s *Step, x Tensor, heads int, from []int32) Tensor {
	return r.copyOf(s, x, heads, from, 1)
}

// Apply rotates x in place. It is for inference and fails in training.
func (r *Rotary) Apply(s *Step, x Tensor, heads int) {
	if s.infers("Rotary.Apply") && s.accepts("Rotary", "x", &x, 0, nil) && s.ok(r.check(&x, heads, nil)) {
		r.rotate(s, x, x, heads, nil, 1)
	}
}

// Backward returns the gradient of x, given dy, the gradient of Forward's result. This gradient is
// dy, rotated by the negative angles.
func (r *Rotary) Backward(s *Step, dy Tensor, heads int) Tensor {
	return r.copyOf(s, dy, heads, nil, -1)
}

// copyOf returns x, rotated.
func (r *Rotary) copyOf(s *Step, x Tensor, heads int, from []int32, sign float32) Tensor {
	if !s.accepts("Rotary", "x", &x, 0, nil) || !s.ok(r.check(&x, heads, from)) {
		return Tensor{}
	}
	y := s.NewTensor(x.Rows, x.Features)
	r.rotate(s, y, x, heads, from, sign)
	return y
}

// rotate sets y to x, rotated. y may be x.
func (r *Rotary) rotate(s *Step, y, x Tensor, heads int, from []int32, sign float32) {
	most := 0
	for b := range x.Batch {
		_, n, _ := x.sequence(b)
		most = max(most, start(from, b)+n)
	}
	w := s.startRows(x.Count(), rotateRows)
	w.x, w.y, w.rotary, w.rotation = x, y, r, r.upTo(most)
	w.heads, w.starts, w.sign = heads, from, sign
	s.runRows(x.Features)
}

func rotateRows(w *rowWork, _, from, to int) {
	r := w.rotary
	for i := from; i < to; i++ {
		x, y := w.x.Row(i), w.y.Row(i)
		if &x[0] != &y[0] {
			copy(y, x)
		}
		b, t := w.x.place(i)
		if w.x.Lens != nil && t >= int(w.x.Lens[b]) {
			continue // padding
		}
		r.turnRow(w.rotation, y, w.heads, start(w.starts, b)+t, w.sign)
	}
}

// turnRow rotates a row of the given heads in place.
func (r *Rotary) turnRow(t *rotation, row []float32, heads, position int, sign float32) {
	half := r.dim / 2
	cos, sin := t.cos[position*half:][:half], t.sin[position*half:][:half]
	for h := 0; h < len(row); h += len(row) / heads {
		if head := row[h:][:2*half]; r.interleaved {
			turnNeighbors(head, cos, sin, sign)
		} else {
			turnHalves(head[:half], head[half:], cos, sin, sign)
		}
	}
}

func turnHalves(x, y, cos, sin []float32, sign float32) {
	y, cos, sin = y[:len(x)], cos[:len(x)], sin[:len(x)]
	for i, u := range x {
		v, c, s := y[i], cos[i], sin[i]*sign
		x[i], y[i] = u*c-v*s, v*c+u*s
	}
}

func turnNeighbors(x, cos, sin []float32, sign float32) {
	sin = sin[:len(cos)]
	for i, c := range cos {
		u, v, s := x[2*i], x[2*i+1], sin[i]*sign
		x[2*i], x[2*i+1] = u*c-v*s, v*c+u*s
	}
}

// place returns the sequence of row i, and the row's position in the sequence.
func (r *Rows) place(i int) (b, t int) {
	switch {
	case r.Starts != nil:
		b = sort.Search(len(r.Starts), func(k int) bool { return int(r.Starts[k]) > i }) - 1
		return b, i - int(r.Starts[b])
	case r.TimeFirst:
		return i % r.Batch, i / r.Batch
	}
	return i / r.T, i % r.T
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
