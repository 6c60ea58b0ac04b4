package input

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/flashkit-go/flashkit"
)

// Random makes all that the passes of a problem read from a seed: normal numbers;
// a bias for all sequences and a mask for all heads, three of four pairs of which take part;
// the slopes of ALiBi; lengths from half of what they may be; pages in any order; an origin
// as of a part behind another one of this size.
func Random(p flashkit.Problem, seed uint64, l Layout, backward bool) *Input {
	in := Empty(p, seed, l, backward)
	in.Source = fmt.Sprintf("random, seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, a := range flashkit.Arguments() {
		t := a.Of(&in.Args)
		for i := range t.Len() {
			x := r.NormFloat64()
			if a.Name == "Mask" && x < -.6745 { // the first quarter of normal numbers
				x = 0
			}
			SetValue(t, i, float32(x))
		}
	}
	if p.Score.ALiBi {
		in.Args.Slopes = AlibiSlopes(p.Heads)
	}
	shuffle(in.Args.Seqs, rand.New(rand.NewPCG(seed, 4)), &p)
	return in
}

// Empty makes zeros of what Random makes numbers of. Sequences are as long as
// they may be.
func Empty(p flashkit.Problem, seed uint64, l Layout, backward bool) *Input {
	in := &Input{Problem: p, Layout: l}
	if in.Args.Seed = seed; p.Score.Origin {
		in.Args.Origin = flashkit.Origin{Batch: 1, Head: p.Heads, Row: p.QLen, Key: p.KVLen / 8 * 8}
	}
	for _, a := range flashkit.Arguments() {
		if Reads(&a, &p, backward) {
			*a.Of(&in.Args) = NewTensor(a.DType(&p), ShapeIn(&a, &p), l.Of(a.Name))
		}
	}
	if !p.Ragged {
		return in
	}
	in.Args.Seqs = &flashkit.Sequences{KVLens: make([]int32, p.Batch)}
	for b := range p.Batch {
		in.Args.Seqs.KVLens[b] = int32(min(p.KVLen, math.MaxInt32))
	}
	if p.Page > 0 {
		in.Args.Seqs.Pages = make([]int32, p.Batch*pages(&p))
		for i := range in.Args.Seqs.Pages {
			in.Args.Seqs.Pages[i] = int32(i)
		}
	}
	return in
}

// shuffle makes sequences differ.
func shuffle(s *flashkit.Sequences, r *rand.Rand, p *flashkit.Problem) {
	if s == nil {
		return
	}
	half := func(n int) int32 { n = min(n, math.MaxInt32); return int32(n - r.IntN(n/2+1)) }
	if p.QLen > 1 {
		s.QLens = make([]int32, p.Batch)
		for b := range s.QLens {
			s.QLens[b] = half(p.QLen)
		}
	}
	for b := range s.KVLens {
		s.KVLens[b] = half(p.KVLen)
	}
	r.Shuffle(len(s.Pages), func(i, j int) { s.Pages[i], s.Pages[j] = s.Pages[j], s.Pages[i] })
}

// Reads reports whether the passes of a problem need an argument from their caller.
func Reads(a *flashkit.Argument, p *flashkit.Problem, backward bool) bool {
	role := a.Role(p, flashkit.PassForward)
	if backward && role == 0 {
		role = a.Role(p, flashkit.PassBackward)
	}
	return role&flashkit.Input != 0 && role&flashkit.Optional == 0
}

// ShapeIn returns the shape of an argument of random input.
func ShapeIn(a *flashkit.Argument, p *flashkit.Problem) [4]int {
	s := a.Shape(p)
	switch a.Name {
	case "Bias", "DBias", "Slopes":
		s[0] = 1
	case "Mask":
		s[1] = 1
	case "K", "V":
		if p.Page > 0 {
			s[0], s[2] = p.Batch*pages(p), p.Page
		}
	}
	return s
}

// pages returns how many pages a sequence may have.
func pages(p *flashkit.Problem) int {
	if p.KVLen == 0 {
		return 0
	}
	return (p.KVLen-1)/p.Page + 1
}

// AlibiSlopes returns the slopes of Press, Smith and Lewis (Train short, test long, 2022):
// powers of 2^(-8/n) for n heads and, where n is no power of two, those of the next
// smaller one and then every other one of twice as many.
func AlibiSlopes(heads int) flashkit.Tensor {
	n := 1
	for 2*n <= heads {
		n *= 2
	}
	t := NewTensor(flashkit.Float32, [4]int{1, heads, 1, 1}, BHSD)
	for h := range heads {
		power := -8 * float64(h+1) / float64(n)
		if h >= n {
			power = -4 * float64(2*(h-n)+1) / float64(n)
		}
		t.Float32s()[h] = float32(math.Exp2(power))
	}
	return t
}
