// Package oracle computes attention and its gradients from the definition: in float64, with every
// matrix stored in full. Its results are the reference for all kernels, so it shares no code and no
// algorithm with them. It has no tiles, no running maximum, no delta from O and no band arithmetic.
//
// The explicit conversions around products prevent the compiler from fusing multiplication and
// addition. The golden vectors thus do not depend on build options.
//
// All arrays are dense and row-major, in the Problem's shapes. The sequences of a ragged problem
// are padded.
package oracle

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// Inputs are the inputs of both passes.
type Inputs struct {
	Q []float64 // [B, H, N, D]
	K []float64 // [B, G, M, D]
	V []float64 // [B, G, M, DV]

	DO   []float64 // for Backward: [B, H, N, DV]
	DLSE []float64 // for Backward: [B, H, N]; nil for 0

	Bias   Pairs     // for Score.Bias
	Mask   Pairs     // for Score.Mask: nonzero shows the pair
	Ranges Pairs     // for Score.Ranges: [B, H, N, 2R], first key and end of each range
	Slopes []float64 // [B, H] or [H]
	Sink   []float64 // [H]
	Seed   uint64    // seed of dropout
	Origin [4]int    // for dropout: position of the first sequence, head, row and key in a larger problem

	QLens, KVLens []int     // [B]; nil for full lengths
	O, LSE        []float64 // result over earlier keys, in the shapes of the results; for Forward with Carry
	RowMax        []float64 // row maxima over earlier keys; for RowMax with Carry
}

// Pairs is an array [B, H, N, M]. A dimension of size 1 repeats, unless it is the last dimension.
type Pairs struct {
	X     []float64
	Shape [4]int
}

// at returns the index in x.X of a pair's element.
func (x *Pairs) at(b, h, i, j int) int {
	at := 0
	for d, k := range [...]int{b, h, i} {
		if x.Shape[d] == 1 {
			k = 0
		}
		at = at*x.Shape[d] + k
	}
	return at*x.Shape[3] + j
}

// holds reports whether key j is in one of row i's ranges, which are the elements of x.
func (x *Pairs) holds(b, h, i, j int) bool {
	for r := 0; r < x.Shape[3]; r += 2 {
		if at := x.at(b, h, i, r); x.X[at] <= float64(j) && float64(j) < x.X[at+1] {
			return true
		}
	}
	return false
}

// Gradients are the backward pass's results, each in the shape of its tensor. DBias and DSink are
// nil for problems without bias or sink.
type Gradients struct{ DQ, DK, DV, DBias, DSink []float64 }

// Forward returns O [B, H, N, DV] and LSE [B, H, N] of a valid problem. A row beyond the end of its
// sequence has O = 0 and LSE = -Inf. The same holds for a row that sees no key, and for a row whose
// scores are all -Inf. In all these rules a sink and earlier keys count as scores. A row with a
// visible score of NaN or +Inf is NaN.
func Forward(p flashkit.Problem, in Inputs) (o, lse []float64) {
	if p.QLen == 0 {
		return nil, nil // Heads may then be any number
	}
	for b := range p.Batch {
		for h := range p.Heads {
			a := newHead(p, &in, b, h)
			oHead := weigh(a.dropped(a.prob), a.v)
			for i := range oHead {
				if len(oHead[i]) == 0 {
					oHead[i] = make([]float64, p.VDim)
				}
				if math.IsNaN(a.lse[i]) { // also in a row that sees no key, but has a sink
					for c := range oHead[i] {
						oHead[i][c] = math.NaN()
					}
				}
				if w := a.carried[i]; p.Carry && w != 0 {
					for c, x := range in.O[((b*p.Heads+h)*p.QLen+i)*p.VDim:][:p.VDim] {
						oHead[i][c] += float64(w * x)
					}
				}
			}
			for range p.QLen - a.p.QLen {
				oHead, a.lse = append(oHead, make([]float64, p.VDim)), append(a.lse, math.Inf(-1))
			}
			o, lse = append(o, flatten(oHead, p.VDim)...), append(lse, a.lse...)
		}
	}
	return o, lse
}

// Backward returns the gradients of sum(O*DO) + sum(LSE*DLSE) for a valid problem.
func Backward(p flashkit.Problem, in Inputs) (g Gradients) {
	if p.Score.Bias {
		g.DBias = make([]float64, len(in.Bias.X))
	}
	if p.Score.Sink {
		g.DSink = make([]float64, p.Heads)
	}
	if p.QLen == 0 && p.KVLen == 0 {
		return g
	}
	if p.QLen == 0 {
		p.Heads = p.KVHeads // Heads may then be any number
	}
	group := p.Heads / p.KVHeads
	for b := range p.Batch {
		for kv := range p.KVHeads {
			dk, dv := zeros(p.KVLen, p.Dim), zeros(p.KVLen, p.VDim)
			for h := kv * group; h < (kv+1)*group; h++ {
				dq := newHead(p, &in, b, h).backward(&g, dk, dv)
				for range p.QLen - len(dq) {
					dq = append(dq, make([]float64, p.Dim))
				}
				g.DQ = append(g.DQ, flatten(dq, p.Dim)...)
			}
			g.DK = append(g.DK, flatten(dk, p.Dim)...)
			g.DV = append(g.DV, flatten(dv, p.VDim)...)
		}
	}
	return g
}

// A headOf holds the matrices of both passes for query head h of sequence b.
type headOf struct {
	p    flashkit.Problem // the problem with the lengths of the sequence
	full flashkit.Problem
	in   *Inputs
	b, h int

	q, k, v [][]float64
	slope   [][]float64 // derivative of Modify at each scaled dot product
	prob    [][]float64 // weights before dropout
	sink    []float64   // weight of the sink in each row
	carried []float64   // weight of the earlier keys' O in each row
	lse     []float64
	from    int // the head's first row in arrays [B, H, N]
}

func newHead(p flashkit.Problem, in *Inputs, b, h int) *headOf {
	a := &headOf{p: p, full: p, in: in, b: b, h: h, from: (b*p.Heads + h) * p.QLen}
	if in.QLens != nil {
		a.p.QLen = in.QLens[b]
	}
	if in.KVLens != nil {
		a.p.KVLen = in.KVLens[b]
	}
	kv := h / (p.Heads / p.KVHeads)
	a.q = head(in.Q, p.QShape(), b, h)[:a.p.QLen]
	a.k, a.v = head(in.K, p.KShape(), b, kv)[:a.p.KVLen], head(in.V, p.VShape(), b, kv)[:a.p.KVLen]
	a.softmax(a.scores())
	return a
}

// Sees reports whether row i sees key j, by the definition of Band.
func Sees(p flashkit.Problem, i, j int) bool {
	at := diagonal(p, i)
	if left := p.Band.Left(); left != flashkit.Unlimited && at-j > left {
		return false
	}
	if right := p.Band.Right(); right != flashkit.Unlimited && j-at > right {
		return false
	}
	return true
}

// diagonal returns the key at which the diagonal meets row i.
func diagonal(p flashkit.Problem, i int) int {
	i += p.Band.Shifted()
	if !p.Band.IsTopLeft() {
		i += p.KVLen - p.QLen
	}
	return i
}

// scores returns S [N, M], with -Inf for hidden pairs. It sets a.slope.
func (a *headOf) scores() [][]float64 {
	p, in, score := a.p, a.in, a.p.Score
	s := product(a.q, transpose(a.k, p.Dim))
	scaleAll(s, p.SoftmaxScale())
	a.slope = zeros(p.QLen, p.KVLen)
	for i := range s {
		s[i] = s[i][:min(len(s[i]), p.KVLen)]
		for j := range s[i] {
			s[i][j], a.slope[i][j] = Modify(&score, s[i][j])
			if score.Bias {
				s[i][j] += in.Bias.X[in.Bias.at(a.b, a.h, i, j)]
			}
			if score.ALiBi {
				slope := in.Slopes[(a.b*p.Heads+a.h)%len(in.Slopes)]
				if math.IsInf(slope, 0) {
					slope = math.NaN() // an infinite slope gives NaN even at distance 0
				}
				s[i][j] -= float64(slope * math.Abs(float64(j-diagonal(p, i))))
			}
			if !Sees(p, i, j) || score.Ranges != 0 && !in.Ranges.holds(a.b, a.h, i, j) || score.Mask && in.Mask.X[in.Mask.at(a.b, a.h, i, j)] == 0 {
				s[i][j] = math.Inf(-1)
			}
		}
	}
	return s
}

// Modify returns the score of a scaled dot product s, before bias and ALiBi, and the derivative of
// this score by s.
func Modify[F float32 | float64](score *flashkit.Score, s F) (x, slope F) {
	if c := F(score.Softcap); c != 0 {
		t := F(math.Tanh(float64(s / c)))
		return c * t, 1 - t*t
	}
	return s, 1
}

// softmax computes LSE and the weights exp(S - LSE), with the weights of the sink and of earlier
// keys.
func (a *headOf) softmax(s [][]float64) {
	for i, row := range s {
		sink, earlier := math.Inf(-1), math.Inf(-1)
		if a.p.Score.Sink {
			sink = a.in.Sink[a.h]
		}
		if a.p.Carry {
			earlier = a.in.LSE[a.from+i]
		}
		top := math.Max(sink, earlier)
		for _, x := range row {
			top = math.Max(top, x) // math.Max keeps a NaN
		}
		weights := make([]float64, len(row)+2)
		if math.IsInf(top, -1) {
			a.add(weights, top)
			continue
		}
		var sum float64
		for j, x := range append(row[:len(row):len(row)], sink, earlier) {
			weights[j] = math.Exp(x - top)
			sum += weights[j]
		}
		for j := range weights {
			weights[j] /= sum
		}
		for j, x := range row {
			if math.IsInf(x, -1) {
				weights[j] = 0 // even if the row is NaN
			}
		}
		a.add(weights, top+math.Log(sum))
	}
}

// add appends a row to the matrices: the weights of the row's keys, of the sink, and of the earlier
// keys.
func (a *headOf) add(weights []float64, lse float64) {
	n := len(weights) - 2
	a.prob, a.sink, a.carried = append(a.prob, weights[:n]), append(a.sink, weights[n]), append(a.carried, weights[n+1])
	a.lse = append(a.lse, lse)
}

// dropped returns x, a matrix [rows, keys], times the dropout factors of the weights.
func (a *headOf) dropped(x [][]float64) [][]float64 {
	if a.p.Score.Dropout == 0 {
		return x
	}
	y := zeros(len(x), a.p.KVLen)
	for i := range x {
		for j := range x[i] {
			if o := a.in.Origin; Kept(a.p.Score.Dropout, a.in.Seed, o[0]+a.b, o[1]+a.h, o[2]+i, o[3]+j) {
				y[i][j] = x[i][j] * Keep(a.p.Score.Dropout)
			}
		}
	}
	return y
}

// backward returns the head's dQ and adds its part of the other gradients to g, dk and dv.
func (a *headOf) backward(g *Gradients, dk, dv [][]float64) (dq [][]float64) {
	p, in := a.p, a.in
	do := head(in.DO, a.full.OShape(), a.b, a.h)[:p.QLen]
	dProb := a.dropped(product(do, transpose(a.v, p.VDim)))
	ds := zeros(p.QLen, p.KVLen)
	for i := range ds {
		var mean, dlse float64
		for j, w := range a.prob[i] {
			if w != 0 { // a hidden key may hold NaN
				mean += float64(w * dProb[i][j])
			}
		}
		if in.DLSE != nil {
			dlse = in.DLSE[a.from+i] // d LSE[i] / d S[i][j] is P[i][j]
		}
		for j, w := range a.prob[i] {
			if w != 0 {
				ds[i][j] = w * (dProb[i][j] - mean + dlse)
			}
		}
		if p.Score.Sink && a.sink[i] != 0 {
			g.DSink[a.h] += float64(a.sink[i] * (dlse - mean))
		}
		if p.Score.Bias {
			for j, x := range ds[i] {
				g.DBias[in.Bias.at(a.b, a.h, i, j)] += x
			}
		}
		for j := range ds[i] {
			if ds[i][j] != 0 {
				ds[i][j] *= a.slope[i][j] * p.SoftmaxScale()
			}
		}
	}
	addTo(dk, weigh(transpose(ds, p.KVLen), a.q))
	addTo(dv, weigh(transpose(a.dropped(a.prob), p.KVLen), do))
	return weigh(ds, a.k)
}
