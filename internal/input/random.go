package input

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// Random generates all inputs of a problem's passes from a seed. Numbers are normally distributed,
// and so are about the products of int8 elements and their scales.
// All sequences have the same bias. All heads have the same mask, which keeps three of four pairs,
// and the same ranges of keys.
// Sequence lengths are at least half the maximum, and pages are shuffled. An origin has Batch 1.
// Its Head and Row are the problem's Heads and QLen, and its Key is KVLen rounded down to a
// multiple of 8.
func Random(p flashkit.Problem, seed uint64, l Layout, backward bool) *Input {
	in := Empty(p, seed, l, backward)
	in.Source = fmt.Sprintf("random, seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, a := range flashkit.Arguments() {
		t := a.Of(&in.Args)
		for i := range t.Len() {
			x := r.NormFloat64()
			switch {
			case a.Name == "Mask" && x < -.6745: // the first quartile
				x = 0
			case t.DType() == flashkit.Int8:
				x = max(-127, min(math.Round(32*x), 127))
			case a.Name == "KScale" || a.Name == "VScale":
				x = (1 + .25*math.Tanh(x)) / 32
			}
			SetValue(t, i, float32(x))
		}
	}
	if p.Score.ALiBi {
		in.Args.Slopes = AlibiSlopes(p.Heads)
	}
	randomRanges(&in.Args.Ranges, rand.New(rand.NewPCG(seed, 5)), p.KVLen)
	shuffle(in.Args.Seqs, rand.New(rand.NewPCG(seed, 4)), &p)
	return in
}

// randomRanges sets the ranges of each row to random keys, in order.
func randomRanges(t *flashkit.Tensor, r *rand.Rand, keys int) {
	all, ends := t.Int32s(), t.Shape()[3]
	for i := range all {
		all[i] = int32(min(r.Uint64N(uint64(keys)+1), math.MaxInt32))
	}
	for ; len(all) > 0; all = all[ends:] {
		slices.Sort(all[:ends])
	}
}

// Empty returns inputs like Random's, with zeros in place of random numbers. Sequences have the
// maximum length.
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

// shuffle randomizes lengths and pages.
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

// Reads reports whether the passes of a problem require an argument from the caller.
func Reads(a *flashkit.Argument, p *flashkit.Problem, backward bool) bool {
	role := a.Role(p, flashkit.PassForward)
	if backward && role == 0 {
		role = a.Role(p, flashkit.PassBackward)
	}
	return role&flashkit.Input != 0 && role&flashkit.Optional == 0
}

// ShapeIn returns the shape of an argument in Random's input.
func ShapeIn(a *flashkit.Argument, p *flashkit.Problem) [4]int {
	s := a.Shape(p)
	switch a.Name {
	case "Bias", "DBias", "Slopes":
		s[0] = 1
	case "Mask", "Ranges":
		s[1] = 1
	case "K", "V", "KScale", "VScale":
		if p.Page > 0 {
			s[0], s[2] = p.Batch*pages(p), p.Page
		}
	}
	return s
}

// pages returns the number of pages of the longest sequence.
func pages(p *flashkit.Problem) int {
	if p.KVLen == 0 {
		return 0
	}
	return (p.KVLen-1)/p.Page + 1
}

// AlibiSlopes returns the slopes of Press, Smith and Lewis (Train short, test long, 2022): powers
// of 2^(-8/n) if the number n of heads is a power of two. Otherwise AlibiSlopes returns the slopes
// for the next smaller power of two, followed by every other slope for twice this power.
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
