//go:build amd64

package cuda

import (
	"math/rand/v2"

	"github.com/flashkit-go/flashkit"
)

// drawCall draws a problem, half of them with features and a quarter with sequences, and a pass.
func drawCall(r *rand.Rand) (p flashkit.Problem, pass flashkit.Pass) {
	pick := func(of ...int) int { return of[r.IntN(len(of))] }
	maybe := func(n int) bool { return r.IntN(n) == 0 }
	for {
		p, pass = randomProblem(r)
		if maybe(2) { // smaller ones, with other head dims and bands
			upTo := func(bits int) int { return 1 + r.IntN(1<<(1+r.IntN(bits))) }
			p.Batch, p.KVHeads = pick(0, 1, 1, 2, 3, 9), pick(1, 2, 3, 8)
			p.Heads = p.KVHeads * pick(1, 1, 2, 4, 5)
			p.Dim = pick(7, 8, 32, 40, 64, 64, 64, 72, 80, 96, 100, 128, 128, 160, 192, 200, 256, 264, 320, 512, 520)
			if p.VDim = p.Dim; maybe(4) {
				p.VDim = pick(1, 8, 64, 65, 96, 128, 192, 256, 512)
			}
			p.QLen, p.KVLen = pick(0, 1, 1, 2, 4, 16, 33, 64, upTo(9), upTo(9), upTo(12)), pick(0, upTo(9), upTo(9), upTo(13))
			p.Band = flashkit.Window(pick(flashkit.Unlimited, flashkit.Unlimited, 0, upTo(9)), pick(0, 0, flashkit.Unlimited, upTo(7)))
			if maybe(4) {
				p.Band = p.Band.TopLeft()
			}
		}
		if maybe(8) {
			p.Scale = float32(pick(1, 3)) / 7
		}
		if p.DType == flashkit.Float32 && maybe(6) {
			p.KVDType = flashkit.DType(1 + r.IntN(2))
		}
		if maybe(4) {
			if p.Ragged = true; maybe(3) {
				p.Page = pick(1, 7, 8, 16, 32, 40, 64, 256)
			}
		}
		if maybe(2) {
			drawScore(&p, r)
		}
		if p.Features()&flashkit.ForwardFeatures == 0 && maybe(3) {
			pass = flashkit.PassBackward
		}
		if p.Validate() == nil {
			return p, pass
		}
	}
}

// drawScore draws the score features of a problem: often one alone.
func drawScore(p *flashkit.Problem, r *rand.Rand) {
	s, only := &p.Score, r.IntN(14)
	has := func(n int) bool { return n == only || only > 7 && r.IntN(5) == 0 }
	if has(0) {
		s.Softcap = [...]float32{5, 50, 51, 1e-14}[r.IntN(4)]
	}
	s.ALiBi, s.Bias, s.Mask, s.Sink = has(1), has(2), has(3), has(4)
	if has(5) {
		s.Dropout = [...]float32{.1, .25, 1e-9, 1e-12}[r.IntN(4)]
		s.Origin = r.IntN(3) == 0
	}
	p.Carry = has(6)
	if has(7) {
		p.Band = p.Band.Shift(r.IntN(41) - 20)
	}
	if s.ALiBi && r.IntN(8) == 0 {
		p.Scale = 1e-19
	}
}

// drawTensors draws the layouts of a call's tensors in memory of the device, none of which is there.
func (x *recorder) drawTensors(p *flashkit.Problem, pass flashkit.Pass, r *rand.Rand) *flashkit.Args {
	args := &flashkit.Args{Seed: r.Uint64()}
	if p.Score.Origin {
		args.Origin = flashkit.Origin{Batch: r.IntN(3), Head: r.IntN(3), Row: r.IntN(300), Key: 8 * r.IntN(30)}
	}
	if p.Ragged {
		drawLists(p, args, r)
	}
	form := r.IntN(12)
	for i, a := range allArguments {
		role := a.Role(p, pass)
		if role == 0 || role&flashkit.Optional != 0 && r.IntN(3) == 0 {
			continue
		}
		shape, dtype := packedShape(p, args, &a), a.DType(p)
		switch a.Name {
		case "Bias", "Mask", "Slopes":
			for d := range 3 {
				if r.IntN(3) == 0 && (d != 1 || a.Name != "Slopes") {
					shape[d] = 1
				}
			}
			if a.Name == "Bias" && r.IntN(4) == 0 {
				dtype = flashkit.Float32
			}
		case "DBias":
			shape, dtype = args.Bias.Shape(), args.Bias.DType()
		}
		*a.Of(args) = x.tensor(i, dtype, shape, form, r)
	}
	return args
}

// tensor returns a tensor of the device: dense, with rows before heads, with gaps between rows or at an odd address.
func (x *recorder) tensor(i int, t flashkit.DType, shape [4]int, form int, r *rand.Rand) flashkit.Tensor {
	m := x.b.Wrap(Pointer(i+1)<<40, 1<<39)
	switch {
	case form == 1 && shape[3] > 1:
		return m.Tensor(t, 8*r.IntN(3), shape[0], shape[1], shape[2], shape[3]).AsBSHD()
	case form == 2: // rows with gaps
		row := shape[3] + []int{8, 8, 16, 3}[r.IntN(4)]
		return m.Tensor(t, 0, shape[0], shape[1], shape[2], shape[3]).WithStrides(row*shape[2]*shape[1]+16, row*shape[2], row)
	case form == 3:
		return m.Tensor(t, r.IntN(3), shape[0], shape[1], shape[2], shape[3])
	}
	return m.Tensor(t, 0, shape[0], shape[1], shape[2], shape[3])
}

// drawLists draws lengths, or starts, or pages.
func drawLists(p *flashkit.Problem, args *flashkit.Args, r *rand.Rand) {
	lengths := func(most int) (list []int32) {
		for range p.Batch {
			list = append(list, int32(most-r.IntN(most+1)*r.IntN(2)))
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
	args.Seqs = s
	switch r.IntN(3) {
	case 0:
		s.QStarts = starts(p.QLen)
	case 1:
		s.QLens = lengths(p.QLen)
	}
	switch {
	case p.Page > 0:
		s.KVLens, s.Pages = lengths(p.KVLen), make([]int32, p.Batch*ceilDiv(p.KVLen, p.Page))
	case r.IntN(2) == 0:
		s.KVStarts = starts(p.KVLen)
	default:
		s.KVLens = lengths(p.KVLen)
	}
}

// packedShape returns an argument's shape with packed and paged sequences.
func packedShape(p *flashkit.Problem, args *flashkit.Args, a *flashkit.Argument) [4]int {
	shape := a.Shape(p)
	if args.Seqs == nil {
		return shape
	}
	switch s := args.Seqs; a.Name {
	case "Q", "O", "LSE", "DO", "DLSE", "DQ":
		if n := s.QStarts; n != nil {
			shape[0], shape[2] = 1, int(n[len(n)-1])+1
		}
	case "K", "V", "DK", "DV":
		if n := s.KVStarts; n != nil {
			shape[0], shape[2] = 1, int(n[len(n)-1])+1
		} else if p.Page > 0 {
			shape[0], shape[2] = len(s.Pages)+1, p.Page
		}
	}
	return shape
}
