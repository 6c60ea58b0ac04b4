package cuda

import (
	"math"
	"sync"

	"github.com/flashkit-go/flashkit"
)

// The kernels for compute capability 9.0 copy tiles by the bulk copy engine,
// which wants each tensor described by a map of the driver's making. Making one
// takes microseconds, so they are kept.

// mapped is struct MapParams of kernels/fwd_sm90.cu and bwd_sm90.cu: maps of Q, K,
// V, and of O or dO. Forward alone has rows.
type mapped struct {
	maps [4]TensorMap
	params
	rows rowTiles
	_    [20]byte // the driver copies the struct with the padding of its alignment to 64
}

// rowTiles says how fwd_sm90 cuts the query rows of each head: into tall tiles of
// the Plan's rows, and after them into low ones of lowRows.
type rowTiles struct{ tall, low, lowRows int32 }

// A mapKey is all that a map depends on.
type mapKey struct {
	at      Pointer
	bf16    bool
	dims    [4]uint64
	strides [3]uint64
	box     [4]uint32
}

// tensorMaps are the maps of a backend's earlier calls.
type tensorMaps struct {
	mu   sync.RWMutex
	made map[mapKey]*TensorMap
}

// maxMaps bounds the maps that are kept. A program that uses more has new ones all
// the time.
const maxMaps = 1024

// get makes m the map of rows of a view [batch, heads, rows, columns], of which a
// copy moves tile rows and 64 columns.
func (x *tensorMaps) get(d *Driver, m *TensorMap, v *view, t flashkit.DType, shape [4]int, tile int) error {
	k := mapKey{at: v.data, bf16: t == flashkit.BFloat16, box: [4]uint32{64, uint32(tile), 1, 1}}
	for i, n := range shape {
		k.dims[3-i] = uint64(n)
	}
	for i, stride := range [...]int64{v.row, v.head, v.batch} {
		k.strides[i] = uint64(2 * stride)
		if stride == 0 { // of one row, head or batch, or repeated
			k.strides[i] = rowAlignment
			if k.dims[i+1] > 1 {
				k.strides[i] = 0
			}
		}
	}
	x.mu.RLock()
	known := x.made[k]
	x.mu.RUnlock()
	if known == nil {
		known = new(TensorMap)
		args := k // on the heap, which k stays off
		if err := d.TensorMapEncodeTiled(known, args.bf16, args.at, &args.dims, &args.strides, &args.box); err != nil {
			return err
		}
		x.mu.Lock()
		if x.made == nil || len(x.made) >= maxMaps {
			x.made = map[mapKey]*TensorMap{}
		}
		x.made[k] = known
		x.mu.Unlock()
	}
	*m = *known
	return nil
}

// mappedViews are the views of mapped.maps in forward and backward.
var mappedViews = [...][4]int{flashkit.PassForward: {0, 1, 2, 3}, flashkit.PassBackward: {0, 1, 2, 5}}

// mappedKeys divide the pages that copies by tensor maps can take: a box of fewer rows would not
// begin where the permutation of its chunks does.
const mappedKeys = 8

// groupRows are the query rows of a warpgroup of fwd_sm90.
const groupRows = 64

// cutRows cuts the rows of each head for multiprocessors that take tiles in turn,
// first the tall ones, of so many warpgroups, so that the one that ends last ends
// early. Without low tiles, most of them would wait for the few that have one tile
// more than the others. Taken is how many tall tiles take as long as the last one to end.
func cutRows(rows, heads, groups, sms int) (best rowTiles, taken float64) {
	const last = 16 // tall tiles at the end of a head that may be cut instead
	time := groupTime
	least := math.MaxInt
	most := rows / (groups * groupRows)
	for tall := most; tall >= max(0, most-last); tall-- {
		rest := rows - tall*groups*groupRows
		for g := max(1, min(groups, ceilDiv(rest, groupRows))); g > 0; g-- {
			low := ceilDiv(rest, g*groupRows)
			// The first multiprocessors may have one tall tile more; low ones go to the others first.
			each, more := tall*heads/sms, tall*heads%sms
			load := each*time(groups) + ceilDiv(low*heads, sms)*time(g)
			if more > 0 {
				load = max(load, (each+1)*time(groups)+ceilDiv(max(0, low*heads-(sms-more)), sms)*time(g))
			}
			if load < least {
				least, best = load, rowTiles{int32(tall), int32(low), int32(g * groupRows)}
				if g == groups { // head by head
					best.tall, best.low = best.tall+best.low, 0
				}
			}
		}
	}
	return best, float64(least) / float64(time(groups))
}

// groupTime is the time of a tile in which some warpgroups have rows. One without
// leaves the others more of the multiprocessor, but not all.
func groupTime(groups int) int { return 5*groups + 6 }

// groupShare is that time over the one of a whole tile.
func groupShare(used, groups int) float64 {
	return float64(groupTime(used)) / float64(groupTime(groups))
}

// mapTensors makes the maps of a pass, of which a copy moves so many rows each.
func (b *Backend) mapTensors(a *arguments, pass flashkit.Pass, t flashkit.DType, shapes [4][4]int, tiles [4]int) error {
	for i, shape := range shapes {
		if shape[0]*shape[1]*shape[2] == 0 { // nothing to read
			continue
		}
		if err := b.maps.get(b.drv, &a.maps[i], &a.views[mappedViews[pass][i]], t, shape, tiles[i]); err != nil {
			return err
		}
	}
	return nil
}
