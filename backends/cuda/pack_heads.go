package cuda

import "github.com/flashkit-go/flashkit"

// A forward kernel reads K and V once for each tile of query rows of a head. Where a group has
// many query heads of a few rows each, most of a tile is empty, and each head reads K and V
// again. Where all rows see all keys, the rows of all heads of a group are alike: they can be
// those of one head.

// foldTile are the rows of a small tile of a forward kernel.
const packTile = 64

// folded returns the forward problem in which the query heads of each group are rows of one
// head, and whether it is another one that has fewer tiles. What decode_sm80 takes stays as it is.
func packedHeads(p flashkit.Problem) (flashkit.Problem, bool) {
	group := p.Heads / max(1, p.KVHeads)
	if lo, hi := band(p); group < 2 || hasFeatures(&p) || hi < p.KVLen-1 || p.QLen-1+lo > 0 {
		return p, false
	}
	rows := group * p.QLen
	if rows <= families[decodeSM80].rows || rows > reach || ceilDiv(rows, packTile) >= group*ceilDiv(p.QLen, packTile) {
		return p, false
	}
	p.Band, p.Heads, p.QLen = flashkit.Band{}, p.KVHeads, rows
	return p, true
}

// fold describes the query heads of each group as rows of one head, if their rows lie evenly
// apart, and reports whether they do.
func (a *params) packHeads(p flashkit.Problem) bool {
	group, rows := int64(a.heads/a.kvHeads), int64(a.qLen)
	views := [...]*view{&a.views[0], &a.views[3], &a.views[4]} // Q, O and LSE
	for _, v := range views {
		if v.data != 0 && rows > 1 && v.head != rows*v.row {
			return false
		}
	}
	for _, v := range views {
		if rows == 1 {
			v.row = v.head
		}
		if v.head *= group; p.KVHeads == 1 {
			v.head = 0
		}
	}
	lo, hi := band(p)
	a.heads, a.qLen, a.lo, a.hi = int32(p.Heads), int32(p.QLen), int32(lo), int32(hi)
	return true
}
