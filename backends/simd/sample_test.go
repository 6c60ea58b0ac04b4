package simd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// sample is a problem with features, and its arguments. Memory that no result depends on is NaN:
// between rows, around packed sequences, in padding, in unused pages, and behind masks.
type sample struct {
	p            flashkit.Problem
	about        string
	args         flashkit.Args
	n, m         []int // rows and keys of each sequence
	q0, k0       []int // starts of sequences in packed tensors
	qPack, kPack bool
	table        [][]int       // pages of each sequence
	intact       []func() bool // each reports whether the memory around a tensor is unchanged
}

const guard = 8 // elements around every tensor

func (s *sample) rowAt(t *flashkit.Tensor, b, h, i int) int {
	if s.qPack {
		return t.Offset(0, h, s.q0[b]+i)
	}
	return t.Offset(b, h, i)
}

func (s *sample) keyAt(t *flashkit.Tensor, b, g, j int) int {
	switch {
	case s.p.Page > 0:
		return t.Offset(s.table[b][j/s.p.Page], g, j%s.p.Page)
	case s.kPack:
		return t.Offset(0, g, s.k0[b]+j)
	}
	return t.Offset(b, g, j)
}

// pairAt returns the offset of a pair in a tensor whose dimensions of length 1 repeat.
func pairAt(t *flashkit.Tensor, b, h, i, j int) int {
	s := t.Shape()
	return t.Offset(b%s[0], h%s[1], i%s[2]) + j
}

func get(t *flashkit.Tensor, at int) float64 {
	switch t.DType() {
	case flashkit.Float16:
		return float64(half.FromF16(t.Uint16s()[at]))
	case flashkit.BFloat16:
		return float64(half.FromBF16(t.Uint16s()[at]))
	}
	return float64(t.Float32s()[at])
}

func put(t *flashkit.Tensor, at int, x float64) {
	switch t.DType() {
	case flashkit.Float16:
		t.Uint16s()[at] = half.ToF16(float32(x))
	case flashkit.BFloat16:
		t.Uint16s()[at] = half.ToBF16(float32(x))
	default:
		t.Float32s()[at] = float32(x)
	}
}

// fill sets all of a tensor's memory, gaps included.
func fill(t *flashkit.Tensor, x float64) {
	for i := range t.Len() {
		put(t, i, x)
	}
}

// newTensor returns a tensor full of NaN. It draws one of the usual layouts, with or without gaps.
func (s *sample) newTensor(r *rand.Rand, t flashkit.DType, shape [4]int) flashkit.Tensor {
	st, n := []layout{bhsd, bshd, gaps}[r.IntN(3)].strides(shape), 0
	if shape[0]*shape[1]*shape[2]*shape[3] > 0 {
		n = (shape[0]-1)*st[0] + (shape[1]-1)*st[1] + (shape[2]-1)*st[2] + shape[3]
	}
	var x flashkit.Tensor
	switch t {
	case flashkit.Float32:
		x = flashkit.F32(guarding[float32](s, n), shape[0], shape[1], shape[2], shape[3])
	case flashkit.Float16:
		x = flashkit.F16(guarding[uint16](s, n), shape[0], shape[1], shape[2], shape[3])
	case flashkit.BFloat16:
		x = flashkit.BF16(guarding[uint16](s, n), shape[0], shape[1], shape[2], shape[3])
	case flashkit.Int32:
		return flashkit.Int32s(make([]int32, n), shape[0], shape[1], shape[2], shape[3]).WithStrides(st[0], st[1], st[2])
	case flashkit.Bool:
		return flashkit.Bools(make([]bool, n), shape[0], shape[1], shape[2], shape[3]).WithStrides(st[0], st[1], st[2])
	}
	fill(&x, math.NaN())
	return x.WithStrides(st[0], st[1], st[2])
}

// guarding returns n elements in the middle of an array. Tests check that no other element is
// written.
func guarding[T float32 | uint16](s *sample, n int) []T {
	all := make([]T, n+2*guard)
	s.intact = append(s.intact, func() bool {
		for i := range guard {
			if all[i] != 0 || all[n+guard+i] != 0 {
				return false
			}
		}
		return true
	})
	return all[guard : guard+n]
}

// newSample draws lengths, layouts and numbers for p.
func newSample(r *rand.Rand, p flashkit.Problem) *sample {
	s := &sample{p: p}
	s.drawSequences(r)
	a := &s.args
	qShape, kShape := [4]int{p.Batch, p.Heads, p.QLen}, [4]int{p.Batch, p.KVHeads, p.KVLen}
	if s.qPack {
		qShape[0], qShape[2] = 1, s.q0[p.Batch]+r.IntN(5)
	}
	if s.kPack {
		kShape[0], kShape[2] = 1, s.k0[p.Batch]+r.IntN(5)
	}
	if p.Page > 0 {
		kShape[0], kShape[2] = s.drawPages(r), p.Page
	}
	of := func(t flashkit.DType, shape [4]int, dim int) flashkit.Tensor {
		shape[3] = dim
		return s.newTensor(r, t, shape)
	}
	t, f32 := p.DType, flashkit.Float32
	a.Q, a.O, a.LSE = of(t, qShape, p.Dim), of(t, qShape, p.VDim), of(f32, qShape, 1)
	if p.RowMax {
		a.RowMax = of(f32, qShape, 1)
	}
	if p.KeyMass {
		a.KeyMass = s.newTensor(r, f32, [4]int{p.Batch, p.Heads, 1, p.KVLen})
	}
	a.K, a.V = of(p.KVType(), kShape, p.Dim), of(p.KVType(), kShape, p.VDim)
	a.DO, a.DQ = of(t, qShape, p.VDim), of(t, qShape, p.Dim)
	a.DK, a.DV = of(t, kShape, p.Dim), of(t, kShape, p.VDim)
	if r.IntN(2) == 0 {
		a.DLSE = of(f32, qShape, 1)
	}
	s.drawScores(r)
	s.drawNumbers(r)
	if a.Seed = r.Uint64(); p.Score.Origin {
		far := func() int { return r.IntN(1<<30) >> r.IntN(31) }
		a.Origin = flashkit.Origin{Batch: far(), Head: far(), Row: far(), Key: far() / 8 * 8}
	}
	s.about = fmt.Sprintf("%v n=%v m=%v packed=%v,%v bias=%v,%v mask=%v", p, s.n, s.m, s.qPack, s.kPack, a.Bias.Shape(), a.Bias.DType(), a.Mask.Shape())
	return s
}

// drawSequences draws lengths. It also draws whether query rows and keys are padded, packed or of
// full length.
func (s *sample) drawSequences(r *rand.Rand) {
	p := &s.p
	s.n, s.m = make([]int, p.Batch), make([]int, p.Batch)
	for b := range p.Batch {
		s.n[b], s.m[b] = p.QLen, p.KVLen
	}
	if !p.Ragged {
		return
	}
	draw := func(lens []int, most int) (list []int32) {
		for b := range lens {
			lens[b] = r.IntN(most + 1)
			if r.IntN(5) == 0 {
				lens[b] = 0
			}
			list = append(list, int32(lens[b]))
		}
		return list
	}
	starts := func(lens []int) (at []int, list []int32) {
		x := r.IntN(4)
		for _, n := range lens {
			at, list = append(at, x), append(list, int32(x))
			x += n
		}
		return append(at, x), append(list, int32(x))
	}
	seqs := new(flashkit.Sequences)
	s.args.Seqs = seqs
	switch r.IntN(3) {
	case 0:
		seqs.QLens = draw(s.n, p.QLen)
	case 1:
		draw(s.n, p.QLen)
		s.qPack = true
		s.q0, seqs.QStarts = starts(s.n)
	}
	switch kind := r.IntN(3); {
	case p.Page > 0 || kind == 0:
		seqs.KVLens = draw(s.m, p.KVLen)
	case kind == 1:
		draw(s.m, p.KVLen)
		s.kPack = true
		s.k0, seqs.KVStarts = starts(s.m)
	}
}

// drawPages draws a page table and returns the number of pages. Sequences may share pages.
func (s *sample) drawPages(r *rand.Rand) int {
	width := (s.p.KVLen+s.p.Page-1)/s.p.Page + r.IntN(2)
	pool := s.p.Batch*width + 2
	order := r.Perm(pool)
	for b := range s.p.Batch {
		var row []int
		for i := range width {
			page := order[b*width+i]
			if (i+1)*s.p.Page >= s.m[b]+s.p.Page {
				page = -1 // beyond the sequence's length: must not be read
			}
			row = append(row, page)
			s.args.Seqs.Pages = append(s.args.Seqs.Pages, int32(page))
		}
		s.table = append(s.table, row)
	}
	if s.args.Seqs.Pages == nil {
		s.args.Seqs.Pages = []int32{}
	}
	return pool
}

// drawScores draws the arguments of the score.
func (s *sample) drawScores(r *rand.Rand) {
	p, a := &s.p, &s.args
	some := func() [4]int {
		shape := [4]int{p.Batch, p.Heads, p.QLen, p.KVLen}
		for d := range 3 {
			if r.IntN(2) == 0 {
				shape[d] = 1
			}
		}
		return shape
	}
	if p.Score.Bias {
		t := p.DType
		if r.IntN(2) == 0 {
			t = flashkit.Float32
		}
		a.Bias = s.newTensor(r, t, some())
		a.DBias = s.newTensor(r, t, a.Bias.Shape())
	}
	if p.Score.Mask {
		a.Mask = s.newTensor(r, flashkit.Bool, some())
		density, run := []float64{.1, .5, .95}[r.IntN(3)], 1
		if r.IntN(2) == 0 {
			run = 1 + r.IntN(150) // consecutive keys that the mask hides or shows together
		}
		on := false
		for i := range a.Mask.Bools() {
			if r.IntN(run) == 0 {
				on = r.Float64() < density
			}
			a.Mask.Bools()[i] = on
		}
	}
	s.drawRanges(r)
	if p.Score.ALiBi {
		a.Slopes = s.newTensor(r, flashkit.Float32, [4]int{1 + r.IntN(2)*(p.Batch-1), p.Heads, 1, 1})
		each(a.Slopes, func(_ [4]int, i int) { put(&a.Slopes, i, r.NormFloat64()*.2) })
	}
	if p.Score.Sink {
		a.Sink, a.DSink = s.newTensor(r, flashkit.Float32, [4]int{1, p.Heads, 1, 1}), s.newTensor(r, flashkit.Float32, [4]int{1, p.Heads, 1, 1})
		each(a.Sink, func(_ [4]int, i int) { put(&a.Sink, i, r.NormFloat64()*2) })
		if r.IntN(6) == 0 { // no weight
			put(&a.Sink, 0, math.Inf(-1))
		}
	}
}

// drawNumbers sets the elements of all inputs that belong to sequences. A key that no row sees
// stays NaN. A bias that no pair uses stays NaN, too.
func (s *sample) drawNumbers(r *rand.Rand) {
	p, a := &s.p, &s.args
	row := func(t *flashkit.Tensor, at int) {
		for c := range t.Shape()[3] {
			put(t, at+c, r.NormFloat64())
		}
	}
	for b := range p.Batch {
		for h := range p.Heads {
			for i := range s.n[b] {
				if len(s.seen(b, h, i)) > 0 || p.Score.Sink { // else nothing depends on the row
					row(&a.Q, s.rowAt(&a.Q, b, h, i))
					row(&a.DO, s.rowAt(&a.DO, b, h, i))
				}
				if !a.DLSE.IsZero() {
					row(&a.DLSE, s.rowAt(&a.DLSE, b, h, i))
				}
				for _, j := range s.seen(b, h, i) {
					if !a.Bias.IsZero() {
						x := r.NormFloat64()
						if r.IntN(20) == 0 {
							x = math.Inf(-1)
						}
						put(&a.Bias, pairAt(&a.Bias, b, h, i, j), x)
					}
					g := h / (p.Heads / p.KVHeads)
					if at := s.keyAt(&a.K, b, g, j); get(&a.K, at) != get(&a.K, at) {
						row(&a.K, at)
						row(&a.V, s.keyAt(&a.V, b, g, j))
					}
				}
			}
		}
	}
}

// seen returns the keys that a row sees.
func (s *sample) seen(b, h, i int) (keys []int) {
	band := s.p.Band
	off := s.m[b] - s.n[b]
	if band.IsTopLeft() {
		off = 0
	}
	at := i + off + band.Shifted()
	for j := range s.m[b] {
		if l := band.Left(); l != flashkit.Unlimited && j < at-l {
			continue
		}
		if r := band.Right(); r != flashkit.Unlimited && j > at+r {
			continue
		}
		if t := &s.args.Mask; !t.IsZero() && !t.Bools()[pairAt(t, b, h, i, j)] {
			continue
		}
		if t := &s.args.Ranges; !t.IsZero() && !inRanges(t.Int32s()[pairAt(t, b, h, i, 0):][:t.Shape()[3]], j) {
			continue
		}
		keys = append(keys, j)
	}
	return keys
}

// anyFeatures draws a set of features: each with probability 1/2, a feature that few kernels have with
// 1/8, so that most kernels run most sets.
func anyFeatures(r *rand.Rand) flashkit.Feature {
	const rare = flashkit.FeatureInt8 | flashkit.FeatureRowMax | flashkit.FeatureKeyMass
	return flashkit.Feature(r.Uint32()) & flashkit.AllFeatures &^ (rare & flashkit.Feature(r.Uint32()|r.Uint32()))
}

// drawProblem draws a problem with the given features.
func drawProblem(t testing.TB, r *rand.Rand, features flashkit.Feature, dtype flashkit.DType) flashkit.Problem {
	t.Helper()
	lengths := []int{1, 2, 5, 31, 63, 64, 65, 100, 130}
	g := 1 + r.IntN(2)
	p := flashkit.Problem{
		Batch: 1 + r.IntN(3), KVHeads: g, Heads: g * (1 + r.IntN(3)),
		QLen: lengths[r.IntN(len(lengths))], KVLen: lengths[r.IntN(len(lengths))],
		Dim: 1 + r.IntN(20), VDim: 1 + r.IntN(20), DType: dtype,
		Band: []flashkit.Band{{}, flashkit.Causal(), flashkit.Window(r.IntN(70), r.IntN(70)), flashkit.Causal().TopLeft()}[r.IntN(4)],
	}
	if r.IntN(3) == 0 {
		p.Scale = .1 + r.Float32()
	}
	addFeatures(&p, features)
	if p.Band.Shifted() != 0 {
		p.Band = p.Band.Shift(r.IntN(41) - 20)
	}
	if p.Score.Softcap != 0 {
		p.Score.Softcap = .5 + 3*r.Float32()
	}
	if p.Score.Dropout != 0 {
		p.Score.Dropout = []float32{.1, .5, .9}[r.IntN(3)]
	}
	if p.Page != 0 {
		p.Page = []int{1, 3, 16, 64, 100}[r.IntN(5)]
	}
	if p.Score.Ranges != 0 {
		p.Score.Ranges = 1 + r.IntN(2)
	}
	if p.KVDType != 0 {
		p.KVDType = dtypes[1+r.IntN(2)]
	}
	require.NoError(t, p.Validate())
	return p
}

// addFeatures sets the fields of p that request the features.
func addFeatures(p *flashkit.Problem, features flashkit.Feature) {
	has := func(f flashkit.Feature) bool { return features&f != 0 }
	if has(flashkit.FeatureShift) {
		p.Band = p.Band.Shift(-1)
	}
	if has(flashkit.FeatureSoftcap) {
		p.Score.Softcap = 2
	}
	if has(flashkit.FeatureDropout | flashkit.FeatureOrigin) {
		p.Score.Dropout, p.Score.Origin = .25, has(flashkit.FeatureOrigin)
	}
	p.Score.ALiBi, p.Score.Bias, p.Score.Mask, p.Score.Sink = has(flashkit.FeatureALiBi), has(flashkit.FeatureBias), has(flashkit.FeatureMask), has(flashkit.FeatureSink)
	p.Ragged, p.Carry = has(flashkit.FeatureRagged|flashkit.FeaturePage), has(flashkit.FeatureCarry)
	p.RowMax, p.KeyMass = has(flashkit.FeatureRowMax), has(flashkit.FeatureKeyMass)
	if has(flashkit.FeaturePage) {
		p.Page = 16
	}
	if has(flashkit.FeatureRanges) {
		p.Score.Ranges = 2
	}
	if has(flashkit.FeatureMixed) {
		p.DType, p.KVDType = flashkit.Float32, flashkit.Float16
	}
}
