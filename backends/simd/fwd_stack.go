//go:build (amd64 || arm64) && !purego

package simd

import "github.com/flashkit-go/flashkit"

// stackHeads replaces the plan's call by its stacked call, if its tiles then are fewer, or fewer items
// read K and V. Short float32 keys stay in cache for the next head. The rows of a group must be equally
// far apart in memory. Every row gets the same bits as without stacking. Heads of one row are left to
// the decode kernels.
func (isa *laneRoutines) stackHeads(pl *plan) {
	p, group := &pl.p, pl.p.Heads/pl.p.KVHeads
	if group == 1 || p.QLen <= 1 || p.Ragged || p.Page != 0 || p.Carry || p.KeyMass || p.Score != (flashkit.Score{}) || !isUnbounded(p.Band) ||
		p.KVType() == flashkit.Float32 && ceilDiv(group*p.QLen, isa.lanes) == group*ceilDiv(p.QLen, isa.lanes) && (p.QLen >= itemRows || p.KVLen <= isa.mostOneBlock()) {
		return
	}
	x := &pl.stacked
	if x.call = *pl.call; x.call.Args != nil {
		x.args = *x.call.Args
		for _, t := range [...]*flashkit.Tensor{&x.args.Q, &x.args.O, &x.args.LSE, &x.args.RowMax} {
			if !t.IsZero() && !stack(t, group) {
				pl.unstack()
				return
			}
		}
		x.call.Args = &x.args
	}
	x.call.Heads, x.call.QLen = p.KVHeads, group*p.QLen
	pl.call, pl.p = &x.call, x.call.Problem
}

// stack turns the rows of each group of heads into the rows of one head, or returns false.
func stack(t *flashkit.Tensor, group int) bool {
	shape, strides := t.Shape(), t.Strides()
	if strides[1] != shape[2]*strides[2] {
		return false
	}
	b, h, n, dim := shape[0], shape[1]/group, group*shape[2], shape[3]
	var x flashkit.Tensor
	switch t.DType() {
	case flashkit.Float32:
		x = flashkit.F32(t.Float32s(), b, h, n, dim)
	case flashkit.Float16:
		x = flashkit.F16(t.Uint16s(), b, h, n, dim)
	default:
		x = flashkit.BF16(t.Uint16s(), b, h, n, dim)
	}
	*t = x.WithStrides(strides[0], group*strides[1], strides[2])
	return true
}

func isUnbounded(b flashkit.Band) bool {
	return b.Left() == flashkit.Unlimited && b.Right() == flashkit.Unlimited
}
