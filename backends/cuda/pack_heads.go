package cuda

import "github.com/flashkit-go/flashkit"

// A forward kernel loads K and V once per tile of a head's query rows. If the query heads of a
// group have few rows, most of each tile is empty, and every head loads K and V again. If all rows
// see all keys, a kernel can instead treat the rows of all heads of a group as rows of one head.

// packTile is the number of query rows per tile with which packedHeads counts tiles.
const packTile = 64

// packedHeads returns the forward problem in which the query heads of each group are rows of one
// head. It returns p and false if that problem does not have fewer tiles than p, if the band hides
// a key, if p has features, or if decode_sm80 supports p.
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

// packHeads changes the arguments so that the query heads of each group are rows of one head. If
// these rows are not evenly spaced in memory, it returns false and changes nothing.
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
