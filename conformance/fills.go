package conformance

import (
	"math"
	"slices"

	"github.com/flashkit-go/flashkit/conformance/oracle"
)

// The fills of featureTraps. A fill changes a case's noise inputs.

func all(fills ...func(in *Inputs)) func(in *Inputs) {
	return func(in *Inputs) {
		for _, fill := range fills {
			fill(in)
		}
	}
}

// once sets the size of dimension d of bias and mask to 1, so that both broadcast along this
// dimension.
func once(d int) func(in *Inputs) {
	return func(in *Inputs) {
		for _, x := range []*pairs{&in.bias, &in.mask} {
			if x.x != nil {
				x.shape[d] = 1
				x.x = noise("once", size(x.shape)) // a problem without rows has no noise yet
			}
		}
		in.newMask()
	}
}

// eachPair calls f with the row, the key and the address of every element of x, in all batches and
// heads.
func (x *pairs) eachPair(f func(i, j int, x *float32)) {
	for at := range x.x {
		f(at/x.shape[3]%x.shape[2], at%x.shape[3], &x.x[at])
	}
}

// biasNear sets all biases to whole numbers near `at`, so that no key has all the weight of a row.
// If one key had all the weight, LSE would equal this key's score, and the case would show no
// rounding errors.
func biasNear(at float32) func(in *Inputs) {
	return func(in *Inputs) {
		in.bias.eachPair(func(_, _ int, x *float32) { *x = at + float32(math.Floor(float64(*x))) })
	}
}

// biasInf sets the bias of row i and key j to -Inf if which(i, j) is true.
func biasInf(which func(i, j int) bool) func(in *Inputs) {
	return func(in *Inputs) {
		in.bias.eachPair(func(i, j int, x *float32) {
			if which(i, j) {
				*x = -inf
			}
		})
	}
}

// wideBias stores the bias as float32 in a problem of any type.
func wideBias(in *Inputs) { in.narrowPairs = false }

// nanBehindBand sets the bias of keys outside a row's band to NaN.
func nanBehindBand(in *Inputs) {
	in.bias.eachPair(func(i, j int, x *float32) {
		if !oracle.Sees(in.p, i, j) {
			*x = nan
		}
	})
}

// maskRow hides all keys from the given row.
func maskRow(row int) func(in *Inputs) {
	return func(in *Inputs) {
		in.mask.eachPair(func(i, _ int, x *float32) {
			if i == row {
				*x = 0
			}
		})
	}
}

// hideTiles hides the given tiles of 128 keys from all rows.
func hideTiles(tiles ...int) func(in *Inputs) {
	return func(in *Inputs) {
		in.mask.eachPair(func(_, j int, x *float32) {
			if slices.Contains(tiles, j/128) {
				*x = 0
			}
		})
	}
}

// hideSequence hides all keys of the first sequence.
func hideSequence(in *Inputs) { clear(in.mask.x[:len(in.mask.x)/in.mask.shape[0]]) }

// nanBehindMask sets K and V of masked keys to NaN. The mask must be equal for all heads and rows.
func nanBehindMask(in *Inputs) {
	for _, t := range []struct {
		x     []float32
		shape [4]int
	}{{in.k, in.p.KShape()}, {in.v, in.p.VShape()}} {
		for at := range t.x {
			j, b := at/t.shape[3]%t.shape[2], at/size([4]int{1, t.shape[1], t.shape[2], t.shape[3]})
			if in.mask.x[in.mask.at(b, 0, 0, j)] == 0 {
				t.x[at] = nan
			}
		}
	}
}

// sinks sets the sink of every head to x.
func sinks(x float32) func(in *Inputs) {
	return func(in *Inputs) {
		for h := range in.sink {
			in.sink[h] = x
		}
	}
}

// slopes sets the slope of every head to x.
func slopes(x float32) func(in *Inputs) {
	return func(in *Inputs) {
		for h := range in.features.slopes {
			in.features.slopes[h] = x
		}
	}
}

// slopesOfSequences gives each sequence its own slopes, half as large as the slopes of the previous
// sequence.
func slopesOfSequences(in *Inputs) {
	one := in.features.slopes
	for b := 1; b < in.p.Batch; b++ {
		for _, x := range one {
			in.features.slopes = append(in.features.slopes, x/float32(int(1)<<b))
		}
	}
}

// wideQuery gives the elements of Q more bits than the 16-bit types have.
func wideQuery(in *Inputs) {
	for i := range in.q {
		in.q[i] *= 1 + 0x1p-12
	}
}

func lengths(q, kv []int32) func(in *Inputs) {
	return func(in *Inputs) { in.qLens, in.kvLens = q, kv }
}

// nanWithoutEarlier sets O to NaN in rows without earlier keys.
func nanWithoutEarlier(in *Inputs) {
	for at := range in.earlier {
		if in.earlierLSE[at/in.p.VDim] == -inf {
			in.earlier[at] = nan
		}
	}
	for at := range in.earlierMax {
		if in.earlierLSE[at] == -inf {
			in.earlierMax[at] = nan
		}
	}
}
