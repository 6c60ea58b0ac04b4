package cuda

import "github.com/flashkit-go/flashkit"

// A forward kernel loads K and V once per tile of a head's query rows. With many query heads of few
// rows in a group, most of a tile is empty, and each head loads K and V again. If all rows see all
// keys, the rows of a group's heads can be rows of one head.

// packTile is the number of rows of a small forward tile.
const packTile = 64

// packedHeads returns the forward problem in which the query heads of each group are rows of one
// head. If that does not have fewer tiles, or decode_sm80 supports p, it returns p and false.
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

// packHeads describes the query heads of each group as rows of one head, or returns false if their
// rows are not evenly spaced.
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
