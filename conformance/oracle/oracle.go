// Package oracle computes attention and its gradients the long way: in float64,
// with every matrix written out, from the definition. It is the truth that
// kernels are held to, so it shares no line and no algorithm with any of them:
// no tiles, no running maximum, no delta from O, no band arithmetic.
//
// The conversions around products keep the compiler from fusing multiply and
// add, so that the golden vectors do not depend on how it was told to build.
//
// All arrays are dense and row-major, in the shapes of the Problem.
package oracle

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// Inputs are what both passes read.
type Inputs struct {
	Q []float64 // [B, H, N, D]
	K []float64 // [B, G, M, D]
	V []float64 // [B, G, M, DV]

	DO   []float64 // [B, H, N, DV]; for Backward
	DLSE []float64 // [B, H, N]; for Backward, nil for 0
}

// Forward returns O [B, H, N, DV] and LSE [B, H, N] of a valid problem. A row
// that gives every key the weight 0, because it sees none or because all its
// scores are -Inf, has O = 0 and LSE = -Inf.
func Forward(p flashkit.Problem, in Inputs) (o, lse []float64) {
	if p.QLen == 0 {
		return nil, nil // of any number of heads
	}
	for b := range p.Batch {
		for h := range p.Heads {
			s := scores(p, in, b, h)
			prob, rowLSE := softmax(s)
			lse = append(lse, rowLSE...)
			o = append(o, flatten(weigh(prob, head(in.V, p.VShape(), b, h/(p.Heads/p.KVHeads))), p.VDim)...)
		}
	}
	return o, lse
}

// Backward returns the gradients of sum(O*DO) + sum(LSE*DLSE) with respect to
// Q, K and V, in their shapes.
func Backward(p flashkit.Problem, in Inputs) (dq, dk, dv []float64) {
	if p.QLen == 0 && p.KVLen == 0 {
		return nil, nil, nil
	}
	if p.QLen == 0 {
		p.Heads = p.KVHeads // of any number of heads
	}
	group := p.Heads / p.KVHeads
	scale := p.SoftmaxScale()
	for b := range p.Batch {
		for g := range p.KVHeads {
			k, v := head(in.K, p.KShape(), b, g), head(in.V, p.VShape(), b, g)
			dkHead, dvHead := zeros(p.KVLen, p.Dim), zeros(p.KVLen, p.VDim)
			for h := g * group; h < (g+1)*group; h++ {
				q, do := head(in.Q, p.QShape(), b, h), head(in.DO, p.OShape(), b, h)
				prob, _ := softmax(scores(p, in, b, h))
				dProb := product(do, transpose(v, p.VDim))
				ds := scoreGradient(prob, dProb)
				if in.DLSE != nil {
					// d LSE[i] / d S[i][j] is P[i][j].
					for i := range ds {
						for j, w := range prob[i] {
							if w != 0 {
								ds[i][j] += float64(w * in.DLSE[(b*p.Heads+h)*p.QLen+i])
							}
						}
					}
				}
				scaleAll(ds, scale)
				dq = append(dq, flatten(weigh(ds, k), p.Dim)...)
				addTo(dkHead, weigh(transpose(ds, p.KVLen), q))
				addTo(dvHead, weigh(transpose(prob, p.KVLen), do))
			}
			dk = append(dk, flatten(dkHead, p.Dim)...)
			dv = append(dv, flatten(dvHead, p.VDim)...)
		}
	}
	return dq, dk, dv
}

// Sees reports whether row i sees key j, straight from the definition of Band.
func Sees(p flashkit.Problem, i, j int) bool {
	if !p.Band.IsTopLeft() {
		i += p.KVLen - p.QLen
	}
	if left := p.Band.Left(); left != flashkit.Unlimited && i-j > left {
		return false
	}
	if right := p.Band.Right(); right != flashkit.Unlimited && j-i > right {
		return false
	}
	return true
}

// scores returns S [N, M] of one query head: the scaled product, -Inf where hidden.
func scores(p flashkit.Problem, in Inputs, b, h int) [][]float64 {
	q := head(in.Q, p.QShape(), b, h)
	k := head(in.K, p.KShape(), b, h/(p.Heads/p.KVHeads))
	s := product(q, transpose(k, p.Dim))
	scaleAll(s, p.SoftmaxScale())
	for i := range s {
		for j := range s[i] {
			if !Sees(p, i, j) {
				s[i][j] = math.Inf(-1)
			}
		}
	}
	return s
}

// softmax returns exp(S - LSE) and LSE for every row of S.
func softmax(s [][]float64) (prob [][]float64, lse []float64) {
	for _, row := range s {
		top := math.Inf(-1)
		for _, x := range row {
			top = math.Max(top, x) // math.Max keeps a NaN
		}
		weights := make([]float64, len(row))
		if math.IsInf(top, -1) {
			prob, lse = append(prob, weights), append(lse, top)
			continue
		}
		var sum float64
		for j, x := range row {
			weights[j] = math.Exp(x - top)
			sum += weights[j]
		}
		for j := range weights {
			weights[j] /= sum
		}
		prob, lse = append(prob, weights), append(lse, top+math.Log(sum))
	}
	return prob, lse
}

// scoreGradient applies the Jacobian of softmax row by row:
// dS = P * (dP - sum_j P[j] dP[j]).
func scoreGradient(prob, dProb [][]float64) [][]float64 {
	ds := make([][]float64, len(prob))
	for i := range ds {
		var mean float64
		for j, w := range prob[i] {
			if w != 0 { // a hidden key may hold NaN
				mean += float64(w * dProb[i][j])
			}
		}
		ds[i] = make([]float64, len(prob[i]))
		for j, w := range prob[i] {
			if w != 0 {
				ds[i][j] = w * (dProb[i][j] - mean)
			}
		}
	}
	return ds
}
