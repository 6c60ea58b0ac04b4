package wasm

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// The definition of every feature, pair by pair in float64, over the tensors of a call.
// The definition shares no code with the kernels or with the code that locates sequences.

// num returns element i of the memory of t.
func num(t *flashkit.Tensor, i int) float64 {
	switch t.DType() {
	case flashkit.Float16:
		return float64(half.FromF16(t.Uint16s()[i]))
	case flashkit.BFloat16:
		return float64(half.FromBF16(t.Uint16s()[i]))
	case flashkit.Bool:
		if t.Bools()[i] {
			return 1
		}
		return 0
	}
	return float64(t.Float32s()[i])
}

// setNum writes v to element i, rounded.
func setNum(t *flashkit.Tensor, i int, v float64) {
	switch t.DType() {
	case flashkit.Float16:
		t.Uint16s()[i] = half.ToF16(float32(v))
	case flashkit.BFloat16:
		t.Uint16s()[i] = half.ToBF16(float32(v))
	case flashkit.Bool:
		t.Bools()[i] = v != 0
	default:
		t.Float32s()[i] = float32(v)
	}
}

// lengths returns the rows and keys of sequence b.
func lengths(p *flashkit.Problem, a *flashkit.Args, b int) (n, m int) {
	n, m = p.QLen, p.KVLen
	if s := a.Seqs; s != nil {
		if s.QLens != nil {
			n = int(s.QLens[b])
		}
		if s.QStarts != nil {
			n = int(s.QStarts[b+1] - s.QStarts[b])
		}
		if s.KVLens != nil {
			m = int(s.KVLens[b])
		}
		if s.KVStarts != nil {
			m = int(s.KVStarts[b+1] - s.KVStarts[b])
		}
	}
	return n, m
}

// row returns the index in t, a tensor of query rows, of the first element of row i of sequence b
// and head h.
func row(a *flashkit.Args, t *flashkit.Tensor, b, h, i int) int {
	if a.Seqs != nil && a.Seqs.QStarts != nil {
		b, i = 0, i+int(a.Seqs.QStarts[b])
	}
	return b*t.Strides()[0] + h*t.Strides()[1] + i*t.Strides()[2]
}

// key returns the index in t, a tensor of keys, of the first element of key j of sequence b and KV
// head g.
func key(p *flashkit.Problem, a *flashkit.Args, t *flashkit.Tensor, b, g, j int) int {
	if s := a.Seqs; s != nil && s.KVStarts != nil {
		b, j = 0, j+int(s.KVStarts[b])
	} else if p.Page > 0 {
		b, j = int(s.Pages[b*(len(s.Pages)/p.Batch)+j/p.Page]), j%p.Page
	}
	return b*t.Strides()[0] + g*t.Strides()[1] + j*t.Strides()[2]
}

// pair returns the index of the element for row i and key j in a tensor with broadcast dimensions.
func pair(t *flashkit.Tensor, b, h, i, j int) int {
	at := j
	for d, k := range [...]int{b, h, i} {
		if t.Shape()[d] > 1 {
			at += k * t.Strides()[d]
		}
	}
	return at
}

func visible(p *flashkit.Problem, a *flashkit.Args, b, h, i, j int) bool {
	n, m := lengths(p, a, b)
	off := p.Band.Shifted()
	if !p.Band.IsTopLeft() {
		off += m - n
	}
	if l := p.Band.Left(); l >= 0 && j < i+off-l {
		return false
	}
	if r := p.Band.Right(); r >= 0 && j > i+off+r {
		return false
	}
	if p.Score.Ranges != 0 {
		shown := false
		for ends := a.Ranges.Int32s()[pair(&a.Ranges, b, h, i, 0):][:2*p.Score.Ranges]; len(ends) > 0; ends = ends[2:] {
			shown = shown || int(ends[0]) <= j && j < int(ends[1])
		}
		if !shown {
			return false
		}
	}
	return !p.Score.Mask || a.Mask.Bools()[pair(&a.Mask, b, h, i, j)]
}

// scoreOf returns the score of a pair, and the derivative of the softcap at this score.
func scoreOf(p *flashkit.Problem, a *flashkit.Args, b, h, i, j int) (s, slope float64) {
	g := h / (p.Heads / p.KVHeads)
	q, k := row(a, &a.Q, b, h, i), key(p, a, &a.K, b, g, j)
	for d := range p.Dim {
		s += num(&a.Q, q+d) * num(&a.K, k+d)
	}
	s *= p.SoftmaxScale()
	slope = 1
	if c := float64(p.Score.Softcap); c != 0 {
		t := math.Tanh(s / c)
		s, slope = c*t, 1-t*t
	}
	if p.Score.Bias {
		s += num(&a.Bias, pair(&a.Bias, b, h, i, j))
	}
	if p.Score.ALiBi {
		n, m := lengths(p, a, b)
		off := p.Band.Shifted()
		if !p.Band.IsTopLeft() {
			off += m - n
		}
		s -= num(&a.Slopes, pair(&a.Slopes, b, h, 0, 0)) * math.Abs(float64(j-i-off))
	}
	return s, slope
}

// philoxWords is Philox4x32-7.
func philoxWords(c [4]uint32, k [2]uint32) [4]uint32 {
	for range 7 {
		x, y := uint64(c[0])*0xd2511f53, uint64(c[2])*0xcd9e8d57
		c = [4]uint32{uint32(y>>32) ^ c[1] ^ k[0], uint32(y), uint32(x>>32) ^ c[3] ^ k[1], uint32(x)}
		k[0] += 0x9e3779b9
		k[1] += 0xbb67ae85
	}
	return c
}

// keepOf returns the dropout factor of a weight.
func keepOf(p *flashkit.Problem, a *flashkit.Args, b, h, i, j int) float64 {
	drop := float64(p.Score.Dropout)
	if drop == 0 {
		return 1
	}
	o := &a.Origin
	words := philoxWords([4]uint32{uint32((o.Key + j) / 8), uint32(o.Row + i), uint32(o.Head + h), uint32(o.Batch + b)}, [2]uint32{uint32(a.Seed), uint32(a.Seed >> 32)})
	limit := math.Floor(drop*(1<<16) + .5)
	if float64(words[j%4]>>(j%8/4*16)&0xffff) < limit {
		return 0
	}
	return (1 << 16) / (1<<16 - limit)
}

// referenceRow returns row i of O and its LSE. o0 and lse0 belong to earlier keys.
func referenceRow(p *flashkit.Problem, a *flashkit.Args, b, h, i int, o0 []float64, lse0 float64) (o []float64, lse float64) {
	_, m := lengths(p, a, b)
	scores, top := make([]float64, m), lse0
	for j := range scores {
		scores[j] = math.Inf(-1)
		if visible(p, a, b, h, i, j) {
			scores[j], _ = scoreOf(p, a, b, h, i, j)
		}
		top = max(top, scores[j])
	}
	sink := math.Inf(-1)
	if p.Score.Sink {
		sink = num(&a.Sink, h*a.Sink.Strides()[1])
	}
	top = max(top, sink)
	o = make([]float64, p.VDim)
	if math.IsInf(top, -1) {
		return o, top
	}
	sum := math.Exp(sink-top) + math.Exp(lse0-top)
	for _, s := range scores {
		sum += math.Exp(s - top)
	}
	for d := 0; d < len(o) && !math.IsInf(lse0, -1); d++ {
		o[d] = math.Exp(lse0-top) / sum * o0[d]
	}
	for j, s := range scores {
		z := keepOf(p, a, b, h, i, j)
		if z == 0 || math.IsInf(s, -1) {
			continue
		}
		w, at := z*math.Exp(s-top)/sum, key(p, a, &a.V, b, h/(p.Heads/p.KVHeads), j)
		for d := range o {
			o[d] += w * num(&a.V, at+d)
		}
	}
	return o, top + math.Log(sum)
}

// gradients holds rows of dq, dk and dv by the index of the row's first element in its tensor, and
// elements of dbias and dsink by their index in the tensor.
type gradients struct {
	dq, dk, dv   map[int][]float64
	dbias, dsink map[int]float64
}

// sum returns the row that begins at index at. A new row has zeros.
func sum(rows map[int][]float64, at, width int) []float64 {
	if rows[at] == nil {
		rows[at] = make([]float64, width)
	}
	return rows[at]
}

// referenceGradients returns the gradients of a call, computed from the call's O and LSE.
func referenceGradients(p *flashkit.Problem, a *flashkit.Args) gradients {
	g := gradients{map[int][]float64{}, map[int][]float64{}, map[int][]float64{}, map[int]float64{}, map[int]float64{}}
	for b := range p.Batch {
		n, _ := lengths(p, a, b)
		for h := range p.Heads {
			for i := range n {
				g.addRow(p, a, b, h, i)
			}
		}
	}
	return g
}

func (g *gradients) addRow(p *flashkit.Problem, a *flashkit.Args, b, h, i int) {
	_, m := lengths(p, a, b)
	kv := h / (p.Heads / p.KVHeads)
	lse := num(&a.LSE, row(a, &a.LSE, b, h, i))
	delta := 0.0
	for d := range p.VDim {
		delta += num(&a.DO, row(a, &a.DO, b, h, i)+d) * num(&a.O, row(a, &a.O, b, h, i)+d)
	}
	if !a.DLSE.IsZero() {
		delta -= num(&a.DLSE, row(a, &a.DLSE, b, h, i))
	}
	if math.IsInf(lse, -1) {
		return
	}
	if p.Score.Sink {
		g.dsink[h] -= math.Exp(num(&a.Sink, h*a.Sink.Strides()[1])-lse) * delta
	}
	for j := range m {
		if !visible(p, a, b, h, i, j) {
			continue
		}
		s, slope := scoreOf(p, a, b, h, i, j)
		weight, z, dp := math.Exp(s-lse), keepOf(p, a, b, h, i, j), 0.0
		dv, v := sum(g.dv, key(p, a, &a.DV, b, kv, j), p.VDim), key(p, a, &a.V, b, kv, j)
		for d := 0; d < p.VDim && z != 0; d++ {
			do := num(&a.DO, row(a, &a.DO, b, h, i)+d)
			dp += z * do * num(&a.V, v+d)
			dv[d] += weight * z * do
		}
		ds := weight * (dp - delta)
		if p.Score.Bias && !a.DBias.IsZero() {
			g.dbias[pair(&a.DBias, b, h, i, j)] += ds
		}
		dx := ds * slope * p.SoftmaxScale()
		dq, dk := sum(g.dq, row(a, &a.DQ, b, h, i), p.Dim), sum(g.dk, key(p, a, &a.DK, b, kv, j), p.Dim)
		q, k := row(a, &a.Q, b, h, i), key(p, a, &a.K, b, kv, j)
		for d := range p.Dim {
			dq[d] += dx * num(&a.K, k+d)
			dk[d] += dx * num(&a.Q, q+d)
		}
	}
}
