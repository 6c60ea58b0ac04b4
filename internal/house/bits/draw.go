package main

import (
	"math/rand/v2"

	"github.com/flashkit-go/flashkit"
)

// drawProblem draws a small problem: half of the draws have features, a quarter have sequences.
func drawProblem(r *rand.Rand) flashkit.Problem {
	pick := func(of ...int) int { return of[r.IntN(len(of))] }
	upTo := func(bits int) int { return 1 + r.IntN(1<<(1+r.IntN(bits))) }
	maybe := func(n int) bool { return r.IntN(n) == 0 }
	p := flashkit.Problem{Batch: pick(1, 1, 2, 3), KVHeads: pick(1, 2, 3), DType: flashkit.DType(r.IntN(3))}
	p.Heads = p.KVHeads * pick(1, 1, 2, 4, 5)
	p.Dim = pick(1, 7, 8, 16, 24, 32, 40, 64, 64, 72, 80, 96, 100, 128, 128, 160, 192, 256)
	p.VDim = p.Dim
	if maybe(5) {
		p.VDim = pick(1, 8, 32, 64, 65, 96, 128, 192)
	}
	p.QLen, p.KVLen = pick(0, 1, 1, 1, 2, 3, 4, 8, 16, upTo(8), upTo(8), upTo(9)), pick(upTo(9), upTo(9), upTo(12))
	if maybe(3) {
		p.KVLen = p.QLen
	}
	if p.DType == flashkit.Float32 && maybe(8) {
		p.KVDType = flashkit.DType(1 + r.IntN(2))
	}
	if maybe(2) {
		p.Band = flashkit.Window(pick(flashkit.Unlimited, flashkit.Unlimited, 0, upTo(7)), pick(0, 0, flashkit.Unlimited, upTo(5)))
		if maybe(4) {
			p.Band = p.Band.TopLeft()
		}
	}
	if maybe(6) {
		p.Scale = .3
	}
	if maybe(4) {
		p.Ragged = true
		if maybe(3) {
			p.Page = pick(1, 7, 16, 32, 64)
		}
	}
	if maybe(2) {
		drawFeatures(&p, r)
	}
	return p
}

func drawFeatures(p *flashkit.Problem, r *rand.Rand) {
	maybe := func(n int) bool { return r.IntN(n) == 0 }
	if maybe(4) {
		p.Band = p.Band.Shift(r.IntN(41) - 20)
	}
	if maybe(4) {
		p.Score.Softcap = 5
	}
	p.Score.ALiBi, p.Score.Bias, p.Score.Mask, p.Score.Sink = maybe(4), maybe(3), maybe(3), maybe(4)
	if maybe(4) {
		p.Score.Dropout = .25
		p.Score.Origin = maybe(3)
	}
	p.Carry = maybe(8)
}

// drawArgs draws the inputs of both passes, with O and LSE of earlier keys if the problem has
// Carry.
func drawArgs(p *flashkit.Problem, r *rand.Rand) flashkit.Args {
	var args flashkit.Args
	if args.Seed = 7; p.Score.Origin {
		args.Origin = flashkit.Origin{Batch: 1, Head: 2, Row: 3, Key: 16}
	}
	if p.Ragged {
		drawSequences(p, &args, r)
	}
	form := r.IntN(3)
	hasBackward := p.Features()&flashkit.ForwardFeatures == 0
	for _, a := range flashkit.Arguments() {
		role := a.Role(p, flashkit.PassForward)
		if role == 0 && hasBackward {
			role = a.Role(p, flashkit.PassBackward)
		}
		if role&flashkit.Input == 0 {
			continue
		}
		if a.Name == "DLSE" && r.IntN(2) == 0 {
			continue
		}
		t := like(a.DType(p), shapeOf(p, &args, &a), flashkit.Tensor{})
		switch shape := t.Shape(); {
		case a.Name == "Bias" || a.Name == "Mask" || a.Name == "Slopes":
			for d := range 3 {
				if shape[d] > 1 && d != 1 && r.IntN(2) == 0 {
					shape[d] = 1
				}
			}
			t = like(t.DType(), shape, flashkit.Tensor{})
			if a.Name == "Bias" && r.IntN(3) == 0 {
				t = like(flashkit.Float32, shape, flashkit.Tensor{})
			}
		case form == 1 && a.Name != "Sink":
			t = t.AsBSHD()
		case form == 2 && len(a.Name) == 1: // rows with gaps
			wide := shape
			wide[3] += 8
			t = view(like(t.DType(), wide, flashkit.Tensor{}), shape)
		}
		fill(t, func() float32 {
			x := float32(r.NormFloat64())
			if a.Name == "Mask" && x < -.67 || a.Name == "Slopes" && x < 0 {
				return 0
			}
			return x
		})
		*a.Of(&args) = t
	}
	return args
}

// drawSequences draws lengths, starts or shuffled pages.
func drawSequences(p *flashkit.Problem, args *flashkit.Args, r *rand.Rand) {
	lengths := func(most int) (list []int32) {
		for range p.Batch {
			list = append(list, int32(most-r.IntN(most/2+1)*r.IntN(2)))
		}
		return list
	}
	starts := func(most int) []int32 {
		list := []int32{int32(r.IntN(3))}
		for b, n := range lengths(most) {
			list = append(list, list[b]+n)
		}
		return list
	}
	s := new(flashkit.Sequences)
	if args.Seqs = s; r.IntN(2) == 0 {
		s.QStarts = starts(p.QLen)
	} else {
		s.QLens = lengths(p.QLen)
	}
	if p.Page == 0 && r.IntN(2) == 0 {
		s.KVStarts = starts(p.KVLen)
		return
	}
	s.KVLens = lengths(p.KVLen)
	if p.Page > 0 {
		s.Pages = []int32{}
		each := (p.KVLen + p.Page - 1) / p.Page
		for _, i := range r.Perm(p.Batch * each) {
			s.Pages = append(s.Pages, int32(i))
		}
	}
}

// shapeOf returns the shape of an argument's tensor, which depends on packed and paged sequences.
func shapeOf(p *flashkit.Problem, args *flashkit.Args, a *flashkit.Argument) [4]int {
	shape := a.Shape(p)
	if args.Seqs == nil {
		return shape
	}
	switch a.Name {
	case "Q", "O", "LSE", "RowMax", "DO", "DLSE", "DQ":
		if s := args.Seqs.QStarts; s != nil {
			shape[0], shape[2] = 1, int(s[len(s)-1])+1
		}
	case "K", "V", "DK", "DV":
		if s := args.Seqs.KVStarts; s != nil {
			shape[0], shape[2] = 1, int(s[len(s)-1])+1
		} else if p.Page > 0 {
			shape[0], shape[2] = len(args.Seqs.Pages), p.Page
		}
	}
	return shape
}

// like returns a tensor of zeros, in BSHD layout if other has this layout.
func like(t flashkit.DType, shape [4]int, other flashkit.Tensor) flashkit.Tensor {
	x := flashkit.Zeros(t, shape[0], shape[1], shape[2], shape[3])
	if s := other.Strides(); s[2] > s[1] && shape[2] > 0 {
		return x.AsBSHD()
	}
	return x
}

// view returns the first shape[3] elements of each row of a dense tensor.
func view(t flashkit.Tensor, shape [4]int) flashkit.Tensor {
	strides := t.Strides()
	switch t.DType() {
	case flashkit.Float32:
		t = flashkit.F32(t.Float32s(), shape[0], shape[1], shape[2], shape[3])
	case flashkit.Float16:
		t = flashkit.F16(t.Uint16s(), shape[0], shape[1], shape[2], shape[3])
	default:
		t = flashkit.BF16(t.Uint16s(), shape[0], shape[1], shape[2], shape[3])
	}
	return t.WithStrides(strides[0], strides[1], strides[2])
}

func clone(t flashkit.Tensor) flashkit.Tensor {
	x, strides := flashkit.Zeros(t.DType(), 1, 1, 1, t.Len()), t.Strides()
	copy(x.Float32s(), t.Float32s())
	copy(x.Uint16s(), t.Uint16s())
	return view(x, t.Shape()).WithStrides(strides[0], strides[1], strides[2])
}

// fill sets every element of the tensor's memory to a number that next returns.
func fill(t flashkit.Tensor, next func() float32) {
	one := make([]float32, 1)
	for i := range t.Float32s() {
		t.Float32s()[i] = next()
	}
	for i := range t.Bools() {
		t.Bools()[i] = next() != 0
	}
	for i := range t.Uint16s() {
		one[0] = next()
		if t.DType() == flashkit.Float16 {
			t.Uint16s()[i] = flashkit.ToF16(one)[0]
		} else {
			t.Uint16s()[i] = flashkit.ToBF16(one)[0]
		}
	}
}
