package wasm

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// A trial is a call with random tensors, in random strides with gaps between them. All
// memory that the call may not read holds NaN.
type trial struct {
	*rand.Rand
	p flashkit.Problem
	a flashkit.Args

	hiddenKey map[[2]int]bool // sequence and key that no row may see
}

// A layout is an arrangement of a ragged problem's sequences.
type layout struct{ packQ, padQ, packKV, padKV bool }

const poison = 0x7fc5 // the upper half of a float32 NaN; also a 16-bit NaN

// blank returns a tensor whose memory is all NaN.
func (r *trial) blank(dtype flashkit.DType, s [4]int) flashkit.Tensor {
	rows, gap := s[2], r.IntN(4)
	strides := [3]int{s[1] * rows * (s[3] + gap), rows * (s[3] + gap), s[3] + gap}
	if r.IntN(2) == 0 {
		strides = [3]int{rows * s[1] * (s[3] + gap), s[3] + gap, s[1] * (s[3] + gap)}
	}
	n := s[0]*s[1]*rows*(s[3]+gap) + gap
	var t flashkit.Tensor
	switch dtype {
	case flashkit.Int32:
		t = flashkit.Int32s(make([]int32, n), s[0], s[1], s[2], s[3])
	case flashkit.Bool:
		t = flashkit.Bools(make([]bool, n), s[0], s[1], s[2], s[3])
	case flashkit.Float32:
		x := make([]float32, n)
		for i := range x {
			x[i] = math.Float32frombits(poison << 16)
		}
		t = flashkit.F32(x, s[0], s[1], s[2], s[3])
	default:
		x := make([]uint16, n)
		for i := range x {
			x[i] = 0x7fff // NaN as float16 and as bfloat16
		}
		if t = flashkit.F16(x, s[0], s[1], s[2], s[3]); dtype == flashkit.BFloat16 {
			t = flashkit.BF16(x, s[0], s[1], s[2], s[3])
		}
	}
	return t.WithStrides(strides[0], strides[1], strides[2])
}

func (r *trial) noise(t *flashkit.Tensor, at, n int) {
	for c := range n {
		setNum(t, at+c, 2*r.Float64()-1)
	}
}

// eachRow calls f for every query row that exists.
func (r *trial) eachRow(f func(b, h, i int)) {
	for b := range r.p.Batch {
		n, _ := lengths(&r.p, &r.a, b)
		for h := range r.p.Heads {
			for i := range n {
				f(b, h, i)
			}
		}
	}
}

// eachKey calls f for every key that exists.
func (r *trial) eachKey(f func(b, g, j int)) {
	for b := range r.p.Batch {
		_, m := lengths(&r.p, &r.a, b)
		for g := range r.p.KVHeads {
			for j := range m {
				f(b, g, j)
			}
		}
	}
}

// sequences makes r.a.Seqs, and returns the shapes of tensors of rows and of keys.
func (r *trial) sequences(l layout) (q, k [3]int) {
	p := &r.p
	q, k = [3]int{p.Batch, p.Heads, p.QLen}, [3]int{p.Batch, p.KVHeads, p.KVLen}
	if !p.Ragged {
		return q, k
	}
	s := &flashkit.Sequences{}
	r.a.Seqs = s
	side := func(pack, pad bool, most int) (lens, starts []int32, rows int) {
		at := int32(r.IntN(4))
		starts = append(starts, at)
		for range p.Batch {
			n := int32(r.IntN(most + 1))
			if r.IntN(4) == 0 {
				n = []int32{0, int32(most)}[r.IntN(2)]
			}
			lens = append(lens, n)
			at += n
			starts = append(starts, at)
		}
		switch {
		case pack:
			return nil, starts, int(at) + r.IntN(3)
		case pad:
			return lens, nil, most
		}
		return nil, nil, most
	}
	s.QLens, s.QStarts, q[2] = side(l.packQ, l.padQ, p.QLen)
	if l.packQ {
		q[0] = 1
	}
	s.KVLens, s.KVStarts, k[2] = side(l.packKV && p.Page == 0, l.padKV || p.Page > 0, p.KVLen)
	if s.KVStarts != nil {
		k[0] = 1
	}
	if p.Page > 0 {
		width := ceil(p.KVLen, p.Page) + r.IntN(2)
		k[0], k[2] = p.Batch*width+r.IntN(3), p.Page
		s.Pages = make([]int32, p.Batch*width)
		order := r.Perm(k[0])
		for i := range s.Pages {
			s.Pages[i] = int32(order[i])
		}
		for b := range p.Batch { // pages beyond the length are not read
			for i := ceil(int(s.KVLens[b]), p.Page); i < width; i++ {
				s.Pages[b*width+i] = math.MaxInt32
			}
		}
	}
	return q, k
}

// newTrial returns a call of p with random tensors.
func newTrial(seed uint64, p flashkit.Problem, l layout, gradients bool) *trial {
	r := &trial{Rand: rand.New(rand.NewPCG(seed, 1)), p: p, hiddenKey: map[[2]int]bool{}}
	a := &r.a
	q, k := r.sequences(l)
	a.Q, a.O, a.LSE = r.blank(p.DType, [4]int{q[0], q[1], q[2], p.Dim}), r.blank(p.DType, [4]int{q[0], q[1], q[2], p.VDim}), r.blank(flashkit.Float32, [4]int{q[0], q[1], q[2], 1})
	a.K, a.V = r.blank(p.KVType(), [4]int{k[0], k[1], k[2], p.Dim}), r.blank(p.KVType(), [4]int{k[0], k[1], k[2], p.VDim})
	if gradients {
		a.DQ, a.DK, a.DV = r.blank(p.DType, a.Q.Shape()), r.blank(p.DType, a.K.Shape()), r.blank(p.DType, a.V.Shape())
		a.DO = r.blank(p.DType, a.O.Shape())
		if r.IntN(2) == 0 {
			a.DLSE = r.blank(flashkit.Float32, a.LSE.Shape())
		}
	}
	r.scoreTensors(gradients)
	r.eachRow(func(b, h, i int) { r.noise(&a.Q, row(a, &a.Q, b, h, i), p.Dim) })
	r.eachKey(func(b, g, j int) {
		if !r.hiddenKey[[2]int{b, j}] {
			r.noise(&a.K, key(&p, a, &a.K, b, g, j), p.Dim)
			r.noise(&a.V, key(&p, a, &a.V, b, g, j), p.VDim)
		}
	})
	if a.Seed = r.Uint64(); r.p.Score.Origin {
		far := func() int { return r.IntN(1<<30) >> r.IntN(31) }
		a.Origin = flashkit.Origin{Batch: far(), Head: far(), Row: far(), Key: far() / 8 * 8}
	}
	return r
}

// setRanges draws the ranges of each row.
func (r *trial) setRanges() {
	p, t, n := &r.p, &r.a.Ranges, 2*r.p.Score.Ranges
	*t = r.blank(flashkit.Int32, [4]int{1 + r.IntN(2)*(p.Batch-1), 1 + r.IntN(2)*(p.Heads-1), p.QLen, n})
	for b := range t.Shape()[0] {
		for h := range t.Shape()[1] {
			for i := range p.QLen {
				ends := t.Int32s()[t.Offset(b, h, i):][:n]
				for c := range ends {
					ends[c] = int32(r.IntN(p.KVLen + 1))
				}
				slices.Sort(ends)
			}
		}
	}
}

// scoreTensors makes bias, mask, slopes and sinks. Elements that no row may see stay NaN.
func (r *trial) scoreTensors(gradients bool) {
	p, a := &r.p, &r.a
	pairs := func() [4]int {
		s := [4]int{p.Batch, p.Heads, p.QLen, p.KVLen}
		for d := range 3 {
			if r.IntN(2) == 0 {
				s[d] = 1
			}
		}
		return s
	}
	if p.Score.Mask {
		a.Mask = r.blank(flashkit.Bool, pairs())
		for i := range a.Mask.Bools() {
			a.Mask.Bools()[i] = r.IntN(3) > 0
		}
	}
	if p.Score.Ranges != 0 {
		r.setRanges()
	}
	seen := map[[2]int]bool{}
	r.eachRow(func(b, h, i int) {
		_, m := lengths(p, a, b)
		for j := range m {
			if visible(p, a, b, h, i, j) {
				seen[[2]int{b, j}] = true
			}
		}
	})
	r.eachKey(func(b, _, j int) { r.hiddenKey[[2]int{b, j}] = !seen[[2]int{b, j}] })
	if p.Score.Bias {
		dtype := p.DType
		if r.IntN(2) == 0 {
			dtype = flashkit.Float32
		}
		a.Bias = r.blank(dtype, pairs())
		r.eachRow(func(b, h, i int) {
			_, m := lengths(p, a, b)
			for j := range m {
				if at := pair(&a.Bias, b, h, i, j); visible(p, a, b, h, i, j) && math.IsNaN(num(&a.Bias, at)) {
					r.noise(&a.Bias, at, 1)
					if r.IntN(20) == 0 {
						setNum(&a.Bias, at, math.Inf(-1))
					}
				}
			}
		})
		if gradients && r.IntN(4) > 0 {
			a.DBias = r.blank(dtype, a.Bias.Shape())
		}
	}
	if p.Score.ALiBi {
		a.Slopes = r.blank(flashkit.Float32, [4]int{1 + r.IntN(2)*(p.Batch-1), p.Heads, 1, 1})
		for b := range a.Slopes.Shape()[0] {
			for h := range p.Heads {
				// Ranges may show far keys alone, whose scores float32 must hold.
				setNum(&a.Slopes, pair(&a.Slopes, b, h, 0, 0), r.Float64()*min(1, 100/float64(1+p.KVLen)))
			}
		}
	}
	if p.Score.Sink {
		a.Sink = r.blank(flashkit.Float32, [4]int{1, p.Heads, 1, 1})
		for h := range p.Heads {
			setNum(&a.Sink, pair(&a.Sink, 0, h, 0, 0), 4*r.Float64()-2)
		}
		if gradients && r.IntN(4) > 0 {
			a.DSink = r.blank(flashkit.Float32, a.Sink.Shape())
		}
	}
}
