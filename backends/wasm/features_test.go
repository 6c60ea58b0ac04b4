package wasm

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// Three known answers, of the paper's own list.
func TestReferencePhilox(t *testing.T) {
	ones := [4]uint32{math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32}
	require.Equal(t, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}, philoxWords([4]uint32{}, [2]uint32{}))
	require.Equal(t, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}, philoxWords(ones, [2]uint32{math.MaxUint32, math.MaxUint32}))
	require.Equal(t, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		philoxWords([4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}))
}

// A trial is a call with random tensors, in random strides with gaps between them. All
// memory that the call may not read holds NaN.
type trial struct {
	*rand.Rand
	p flashkit.Problem
	a flashkit.Args

	hiddenKey map[[2]int]bool // sequence and key that no row may see
}

// A layout says how the sequences of a ragged problem lie.
type layout struct{ packQ, padQ, packKV, padKV bool }

const poison = 0x7fc5 // the upper half of a NaN, and one of 16 bits

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
			x[i] = 0x7fff // NaN of both
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
		for b := range p.Batch { // pages beyond the length are not looked at
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
		a.Origin = flashkit.Origin{Batch: far(), Head: far(), Row: far(), Key: far() / 4 * 4}
	}
	return r
}

// scoreTensors makes bias, mask, slopes and sinks. What no row may see stays NaN.
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
				setNum(&a.Slopes, pair(&a.Slopes, b, h, 0, 0), r.Float64())
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

// expected is what an output must hold: numbers at places of its memory, everywhere else
// what it held before.
type expected struct {
	name string
	t    *flashkit.Tensor
	was  []uint32
	want map[int]float64
	tol  float64
}

func (e *expected) check(t *testing.T, label string) {
	rounding := map[flashkit.DType]float64{flashkit.Float32: 0, flashkit.Float16: 1.0 / (1 << 11), flashkit.BFloat16: 1.0 / (1 << 8)}[e.t.DType()]
	for i, was := range bits(*e.t) {
		want, written := e.want[i]
		if !written {
			require.Equal(t, e.was[i], was, "%s: %s[%d] is outside", label, e.name, i)
			continue
		}
		got := num(e.t, i)
		if got == want {
			continue
		}
		require.LessOrEqual(t, math.Abs(got-want), e.tol*(1+math.Abs(want))+rounding*math.Abs(want), "%s: %s[%d] = %g, want %g", label, e.name, i, got, want)
	}
}

// fillWith makes every element of an output that is to be written expect v.
func (e *expected) fillWith(v float64, packed bool) {
	s := e.t.Shape()
	if packed {
		return
	}
	for b := range s[0] {
		for h := range s[1] {
			for i := range s[2] {
				for c := range s[3] {
					e.want[e.t.Offset(b, h, i)+c] = v
				}
			}
		}
	}
}

func expect(name string, t *flashkit.Tensor, tol float64) *expected {
	return &expected{name, t, bits(*t), map[int]float64{}, tol}
}

// prepare fills in O and LSE, and returns what the outputs of a forward call must hold.
func (r *trial) prepareForward() []*expected {
	p, a := &r.p, &r.a
	inf := math.Inf(-1)
	o, lse := expect("O", &a.O, 1e-5), expect("LSE", &a.LSE, 1e-5)
	packed := a.Seqs != nil && a.Seqs.QStarts != nil
	o.fillWith(0, packed)
	lse.fillWith(inf, packed)
	r.eachRow(func(b, h, i int) {
		o0, lse0 := make([]float64, p.VDim), inf
		at, atLSE := row(a, &a.O, b, h, i), row(a, &a.LSE, b, h, i)
		if p.Carry {
			setNum(&a.LSE, atLSE, inf)
			if r.IntN(4) > 0 {
				r.noise(&a.O, at, p.VDim)
				r.noise(&a.LSE, atLSE, 1)
				lse0 = num(&a.LSE, atLSE)
				for c := range o0 {
					o0[c] = num(&a.O, at+c)
				}
			}
		}
		want, wantLSE := referenceRow(p, a, b, h, i, o0, lse0)
		for c, v := range want {
			o.want[at+c] = v
		}
		lse.want[atLSE] = wantLSE
	})
	o.was, lse.was = bits(a.O), bits(a.LSE)
	return []*expected{o, lse}
}

// prepareBackward fills in O, LSE, DO and DLSE, and returns what the gradients must be.
func (r *trial) prepareBackward() []*expected {
	p, a := &r.p, &r.a
	r.eachRow(func(b, h, i int) {
		o, lse := referenceRow(p, a, b, h, i, nil, math.Inf(-1))
		for c, v := range o {
			setNum(&a.O, row(a, &a.O, b, h, i)+c, v)
		}
		setNum(&a.LSE, row(a, &a.LSE, b, h, i), lse)
		r.noise(&a.DO, row(a, &a.DO, b, h, i), p.VDim)
		if !a.DLSE.IsZero() {
			r.noise(&a.DLSE, row(a, &a.DLSE, b, h, i), 1)
		}
	})
	packedQ, packedKV := a.Seqs != nil && a.Seqs.QStarts != nil, a.Seqs != nil && a.Seqs.KVStarts != nil
	g := referenceGradients(p, a)
	const tol = 3e-5
	dq, dk, dv := expect("DQ", &a.DQ, tol), expect("DK", &a.DK, tol), expect("DV", &a.DV, tol)
	dbias, dsink := expect("DBias", &a.DBias, tol), expect("DSink", &a.DSink, tol)
	dq.fillWith(0, packedQ)
	dk.fillWith(0, packedKV)
	dv.fillWith(0, packedKV)
	dbias.fillWith(0, false)
	r.eachRow(func(b, h, i int) {
		for c := range p.Dim {
			dq.want[row(a, &a.DQ, b, h, i)+c] = 0
		}
	})
	r.eachKey(func(b, kv, j int) {
		for c := range p.Dim {
			dk.want[key(p, a, &a.DK, b, kv, j)+c] = 0
		}
		for c := range p.VDim {
			dv.want[key(p, a, &a.DV, b, kv, j)+c] = 0
		}
	})
	for e, rows := range map[*expected]map[int][]float64{dq: g.dq, dk: g.dk, dv: g.dv} {
		for at, row := range rows {
			for c, v := range row {
				e.want[at+c] = v
			}
		}
	}
	maps.Copy(dbias.want, g.dbias)
	for h := 0; !a.DSink.IsZero() && h < p.Heads; h++ {
		dsink.want[a.DSink.Offset(0, h, 0)] = g.dsink[h]
	}
	return []*expected{dq, dk, dv, dbias, dsink}
}

// prepare prepares a call of a pass.
func (r *trial) prepare(pass flashkit.Pass) []*expected {
	if pass == flashkit.PassBackward {
		return r.prepareBackward()
	}
	return r.prepareForward()
}

// sameBits requires the same bits of every run of a call, which begins with the tensors that
// the first one had.
func (r *trial) sameBits(t *testing.T, runs int, run func(n int), label func(n int) string) {
	tensors := []flashkit.Tensor{r.a.O, r.a.LSE, r.a.DQ, r.a.DK, r.a.DV, r.a.DBias, r.a.DSink}
	var was, want [][]uint32
	for _, x := range tensors {
		was = append(was, bits(x))
	}
	for n := range runs {
		for i, x := range tensors {
			setBits(x, was[i])
		}
		run(n)
		var got [][]uint32
		for _, x := range tensors {
			got = append(got, bits(x))
		}
		if n == 0 {
			want = got
		}
		require.Equal(t, want, got, label(n))
	}
}

// run checks one kernel on a random call of its pass.
func (r *trial) run(t *testing.T, k *flashkit.Kernel, label string) {
	all := r.prepare(k.Pass)
	require.Empty(t, k.Fits(r.p.Ask(k.Pass)))
	require.NoError(t, k.Compute(context.Background(), r.p, &r.a), label)
	for _, e := range all {
		if !e.t.IsZero() {
			e.check(t, label)
		}
	}
}

// ask sets the features of p that are in f.
func ask(r *rand.Rand, p *flashkit.Problem, f flashkit.Feature) {
	has := func(x flashkit.Feature) bool { return f&x != 0 }
	if has(flashkit.FeatureShift) {
		p.Band = p.Band.Shift(r.IntN(21) - 10)
	}
	if has(flashkit.FeatureSoftcap) {
		p.Score.Softcap = []float32{.01, .5, 2, 50}[r.IntN(4)]
	}
	p.Score.ALiBi, p.Score.Bias, p.Score.Mask = has(flashkit.FeatureALiBi), has(flashkit.FeatureBias), has(flashkit.FeatureMask)
	p.Score.Sink, p.Carry = has(flashkit.FeatureSink), has(flashkit.FeatureCarry)
	if has(flashkit.FeatureDropout | flashkit.FeatureOrigin) {
		p.Score.Origin = has(flashkit.FeatureOrigin)
		p.Score.Dropout = []float32{.001, .1, .5, .9}[r.IntN(4)]
	}
	p.Ragged = has(flashkit.FeatureRagged | flashkit.FeaturePage)
	if has(flashkit.FeaturePage) {
		p.Page = []int{1, 3, 16, 130}[r.IntN(4)]
	}
	if has(flashkit.FeatureMixed) {
		p.DType, p.KVDType = flashkit.Float32, flashkit.DType(1+r.IntN(2))
	}
}

func randomProblem(r *rand.Rand, f flashkit.Feature) flashkit.Problem {
	g := 1 + r.IntN(2)
	p := flashkit.Problem{
		Batch: 1 + r.IntN(3), KVHeads: g, Heads: g * (1 + r.IntN(3)), QLen: r.IntN(24), KVLen: r.IntN(60),
		Dim: 1 + r.IntN(19), VDim: 1 + r.IntN(19), DType: flashkit.DType(r.IntN(3)),
	}
	if r.IntN(4) == 0 {
		p.QLen, p.KVLen = 20+r.IntN(120), 130+r.IntN(200)
		p.Batch, p.Heads, p.KVHeads = 1+r.IntN(3), 1+r.IntN(2), 1
	}
	if r.IntN(8) == 0 {
		p.QLen, p.KVLen = 1+r.IntN(9), 500+r.IntN(200)
		p.Batch, p.Heads, p.KVHeads = 3, 4, 2 // enough for chunks of several blocks
	}
	p.Band = []flashkit.Band{{}, flashkit.Causal(), flashkit.Window(5, 3), flashkit.Window(40, flashkit.Unlimited), flashkit.Causal().TopLeft()}[r.IntN(5)]
	ask(r, &p, f)
	return p
}

// Every feature by itself, every pair, and random sets of them, each in a random layout.
func TestFeatures(t *testing.T) {
	b := newBackend(t, compiler)
	seed := rand.Uint64()
	var sets []flashkit.Feature
	for i := flashkit.FeatureShift; i < flashkit.AllFeatures; i <<= 1 {
		for j := i; j < flashkit.AllFeatures; j <<= 1 {
			sets = append(sets, i|j)
		}
	}
	random := rand.New(rand.NewPCG(seed, 0))
	rounds := 150
	if testing.Short() || raceEnabled {
		rounds = 30
		random.Shuffle(len(sets), func(i, j int) { sets[i], sets[j] = sets[j], sets[i] })
		sets = sets[:len(sets)/2]
	}
	for range rounds {
		sets = append(sets, flashkit.Feature(random.IntN(int(flashkit.AllFeatures)+1)))
	}
	for n, f := range sets {
		for _, k := range b.Kernels() {
			p := randomProblem(random, f&k.Takes)
			p = within(&k, p)
			l := layout{random.IntN(2) == 0, random.IntN(3) > 0, random.IntN(2) == 0, random.IntN(3) > 0}
			label := fmt.Sprintf("seed %d, set %d, %s %s %+v", seed, n, p, k.Name, l)
			newTrial(seed+uint64(n), p, l, k.Pass == flashkit.PassBackward).run(t, &k, label)
		}
	}
}

// Rows and columns of several blocks, chunks and tiles, where the most is carried from call to call.
func TestFeaturesOfLongRows(t *testing.T) {
	b := newBackend(t, compiler)
	seed := rand.Uint64()
	random, calls := rand.New(rand.NewPCG(seed, 0)), uint64(16)
	if testing.Short() {
		calls = 5
	}
	for n := range calls {
		for _, k := range b.Kernels() {
			p := randomProblem(random, k.Takes&^flashkit.Feature(random.IntN(int(flashkit.AllFeatures)+1)))
			p.Score.Bias, p.Score.Mask = true, n%2 == 0
			p.Batch, p.Heads, p.KVHeads, p.QLen, p.KVLen, p.Dim, p.VDim = 3, 4, 2, 10+random.IntN(20), 560+random.IntN(200), 3, 5
			if strings.HasPrefix(k.Name, "wasm/decode") {
				p.QLen, p.Dim, p.VDim = 1+random.IntN(headRows/2), 1+random.IntN(70), 1+random.IntN(70)
			}
			label := fmt.Sprintf("seed %d, call %d, %s %s", seed, n, p, k.Name)
			newTrial(seed+n, p, layout{n%4 == 0, true, n%3 == 0, true}, k.Pass == flashkit.PassBackward).run(t, &k, label)
		}
	}
}
