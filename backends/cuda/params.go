package cuda

import (
	"math"

	"github.com/flashkit-go/flashkit"
)

// params is struct Params of kernels/params.cuh, field for field.
type params struct {
	views [10]view // Q K V O LSE dO dLSE dQ dK dV

	delta, dqSum, counters, partO, partLSE Pointer

	batch, heads, kvHeads, qLen, kvLen, dim, vDim int32
	lo, hi                                        int32
	scale, scaleLog2                              float32
	splits                                        int32
	deterministic                                 int32
	skew, halves                                  int8 // backward: see backwardCut. fwd_sm90: skew is 1 if warpgroups take turns at the tensor cores
	tile                                          int16
}

// rowMaxView is the index of dLSE in params.views. In forward passes it is the view of RowMax.
const rowMaxView = 6

// view is struct View of kernels/params.cuh: a strided tensor. batch, head and row are strides in
// elements.
type view struct {
	data             Pointer
	batch, head, row int64
}

// rowAlignment is the alignment in bytes that rows need for copies of 16 bytes at once.
const rowAlignment = 16

// granule is the alignment of arrays in workspaces and staging buffers, in bytes.
const granule = 256

// ceilDiv returns n/size, rounded up.
func ceilDiv(n, size int) int { return (n + size - 1) / size }

// reach is the maximum sequence length. A band's limits are clamped to ±reach. The clamp hides no
// key, because every key's index is below reach.
const reach = 1 << 30

// setProblem sets the fields that describe the problem and clears all other fields.
func (a *params) setProblem(p flashkit.Problem) {
	lo, hi := band(p)
	scale := p.SoftmaxScale()
	if p.QLen == 0 {
		p.Heads = p.KVHeads // a kernel would loop over query heads without rows, which add nothing
	}
	*a = params{
		batch: int32(p.Batch), heads: int32(p.Heads), kvHeads: int32(p.KVHeads),
		qLen: int32(p.QLen), kvLen: int32(p.KVLen), dim: int32(p.Dim), vDim: int32(p.VDim),
		lo: int32(lo), hi: int32(hi), scale: float32(scale), scaleLog2: float32(scale * math.Log2E),
		splits: 1, deterministic: 1,
	}
}

// band returns the limits of the mask, clamped to ±reach: row i sees keys i+lo to i+hi.
func band(p flashkit.Problem) (lo, hi int) {
	lo, hi = p.Band.Diagonals(p.QLen, p.KVLen)
	return max(-reach, min(lo, reach)), max(-reach, min(hi, reach))
}

// seenKeys returns the number of keys from the first key that row 0 sees to the last key that the
// last row sees.
func seenKeys(p *flashkit.Problem) int {
	first, _ := p.Keys(0)
	_, last := p.Keys(p.QLen - 1)
	return max(0, last-first)
}

// banded reports whether some row does not see all keys.
func banded(p flashkit.Problem) bool {
	lo, hi := band(p)
	return hi < p.KVLen-1 || p.QLen-1+lo > 0
}

func (v *view) set(t flashkit.Tensor) {
	s := t.Strides()
	*v = view{data: addressOf(t), batch: int64(s[0]), head: int64(s[1]), row: int64(s[2])}
	v.dropStrides(t.Shape())
}

// dropStrides sets the strides of dimensions of length 1 to 0. The caller's strides of such
// dimensions are arbitrary.
func (v *view) dropStrides(shape [4]int) {
	for d, stride := range [...]*int64{&v.batch, &v.head, &v.row} {
		if shape[d] <= 1 {
			*stride = 0
		}
	}
}

// addressOf returns the address of t, 0 for the zero Tensor.
func addressOf(t flashkit.Tensor) Pointer { return Pointer(t.Address()) }
