package cuda

import (
	"math"
	"sync"

	"github.com/flashkit-go/flashkit"
)

// The bulk copy engine of compute capability 9.0 needs a map of each tensor. The driver takes
// microseconds to encode a map, so maps are kept.

// mapped is struct MapParams of kernels/fwd_sm90.cu and bwd_sm90.cu: the maps of Q, K, V, and O
// (forward) or dO (backward), then the parameters. Only the forward pass uses the field rows.
type mapped struct {
	maps [4]TensorMap
	params
	rows rowTiles
	_    [20]byte // the driver copies the struct with the padding of its alignment to 64
}

// rowTiles is fwd_sm90's partition of each head's query rows. The first `tall` tiles have the
// kernel's full number of rows. The next `low` tiles have lowRows rows.
type rowTiles struct{ tall, low, lowRows int32 }

// A mapKey determines a map.
type mapKey struct {
	at      Pointer
	bf16    bool
	dims    [4]uint64
	strides [3]uint64
	box     [4]uint32
}

// tensorMaps are the maps of earlier calls.
type tensorMaps struct {
	mu   sync.RWMutex
	made map[mapKey]*TensorMap
}

// maxMaps is the maximum number of kept maps. At the limit all maps are dropped, because a program
// that reaches the limit uses new tensors all the time.
const maxMaps = 1024

// get sets *m to the map of a view with dimensions [batch, heads, rows, columns]. A copy with this
// map moves `tile` rows of 64 columns.
func (x *tensorMaps) get(d *Driver, m *TensorMap, v *view, t flashkit.DType, shape [4]int, tile int) error {
	k := mapKey{at: v.data, bf16: t == flashkit.BFloat16, box: [4]uint32{64, uint32(tile), 1, 1}}
	for i, n := range shape {
		k.dims[3-i] = uint64(n)
	}
	for i, stride := range [...]int64{v.row, v.head, v.batch} {
		k.strides[i] = uint64(2 * stride)
		if stride == 0 { // the dimension has length 1, or is broadcast
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
		args := k // args escapes to the heap in place of k
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

// mappedViews are the indices of the mapped views, by pass.
var mappedViews = [...][4]int{flashkit.PassForward: {0, 1, 2, 3}, flashkit.PassBackward: {0, 1, 2, 5}}

// mappedKeys must divide the number of keys per page if K and V are loaded through tensor maps.
// With other page sizes, copies would not always begin at a multiple of the swizzle pattern's 8
// rows.
const mappedKeys = 8

// groupRows is the number of query rows of a warpgroup of fwd_sm90.
const groupRows = 64

// cutRows cuts the rows of each head into tall tiles, which use all warpgroups, followed by low
// tiles, which use fewer warpgroups. A multiprocessor that ends a tile takes the next tile. Without
// low tiles, most multiprocessors would idle while a few process one more tall tile. taken is the
// time until the last multiprocessor ends, in units of a tall tile's time.
func cutRows(rows, heads, groups, sms int) (best rowTiles, taken float64) {
	const last = 16 // maximum number of tall tiles at the end of a head that low tiles replace
	time := groupTime
	least := math.MaxInt
	most := rows / (groups * groupRows)
	for tall := most; tall >= max(0, most-last); tall-- {
		rest := rows - tall*groups*groupRows
		for g := max(1, min(groups, ceilDiv(rest, groupRows))); g > 0; g-- {
			low := ceilDiv(rest, g*groupRows)
			// Some multiprocessors have one tall tile more. Low tiles go to the other
			// multiprocessors first.
			each, more := tall*heads/sms, tall*heads%sms
			load := each*time(groups) + ceilDiv(low*heads, sms)*time(g)
			if more > 0 {
				load = max(load, (each+1)*time(groups)+ceilDiv(max(0, low*heads-(sms-more)), sms)*time(g))
			}
			if load < least {
				least, best = load, rowTiles{int32(tall), int32(low), int32(g * groupRows)}
				if g == groups { // low tiles have the size of tall tiles
					best.tall, best.low = best.tall+best.low, 0
				}
			}
		}
	}
	return best, float64(least) / float64(time(groups))
}

// groupTime returns the relative time of a tile in which the given number of warpgroups has rows.
// With fewer warpgroups, each warpgroup runs faster, and the tile takes less time. But the time
// falls by a smaller factor than the number of rows.
func groupTime(groups int) int { return 5*groups + 6 }

// groupShare returns the time of a tile in which `used` warpgroups have rows, relative to a tile in
// which all warpgroups have rows.
func groupShare(used, groups int) float64 {
	return float64(groupTime(used)) / float64(groupTime(groups))
}

// mapTensors encodes the maps of a pass. A copy through map i moves tiles[i] rows.
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
