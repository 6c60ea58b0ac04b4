package cuda

import (
	"slices"
	"strings"
	"unsafe"
)

// The kernels for compute capability 9.0 read through tensor maps. The fake's maps hold their
// arguments, and a launch must have the maps of its tensors.

func (m *TensorMap) bytes(k *mapKey) (own, of []byte) {
	return m[:], unsafe.Slice((*byte)(unsafe.Pointer(k)), unsafe.Sizeof(*k))
}

// hasMaps reports whether a kernel reads through tensor maps.
func (fn *fakeFunction) hasMaps() bool {
	return strings.HasPrefix(fn.name, "fwd_sm90") || strings.HasPrefix(fn.name, "bwd_sm90") && fn.plan[3] > 0
}

// tokens returns the rows or keys of all packed sequences, of the longest where they are padded.
func (f *fakeDriver) tokens(starts, lens Pointer, batch, padded int32) int32 {
	x := fakeFeatured{fake: f}
	if list := x.list(starts, int(batch)+1); list != nil {
		return list[batch]
	}
	if list := x.list(lens, int(batch)); list != nil {
		return slices.Max(list)
	}
	return padded
}

// mapsFit reports whether the maps of a launch belong to its views. With features, shapes are not
// in the argument block; tensors without tokens have no map.
func (f *fakeDriver) mapsFit(fn *fakeFunction, x *mapped, block *features) bool {
	p, rows, keys := x.params, uint32(fn.plan[2]), uint32(fn.plan[3])
	if block != nil {
		p.qLen = f.tokens(block.qStarts, block.qLens, p.batch, p.qLen)
		p.kvLen = f.tokens(block.kvStarts, block.kvLens, p.batch, p.kvLen)
	}
	views, boxes := [4]int{vQ, vK, vV, vO}, [4]uint32{rows, keys, keys, groupRows}
	switch {
	case strings.HasPrefix(fn.name, "bwd_"):
		views[3], boxes[3] = vDO, rows
	case strings.HasPrefix(fn.name, "fwd_sm90_short"):
		boxes[0] = groupRows
	case strings.HasPrefix(fn.name, "fwd_sm90_wide"):
		boxes[2] = wideValueRows
	}
	for i, shape := range [4][4]int32{
		{p.batch, p.heads, p.qLen, p.dim}, {p.batch, p.kvHeads, p.kvLen, p.dim}, {p.batch, p.kvHeads, p.kvLen, p.vDim}, {p.batch, p.heads, p.qLen, p.vDim},
	} {
		if shape[0] == 0 || shape[1] == 0 || shape[2] == 0 {
			continue
		}
		var k mapKey
		own, of := x.maps[i].bytes(&k)
		copy(of, own)
		v := &p.views[views[i]]
		if k.at != v.data || k.bf16 != strings.Contains(fn.name, "_bf16") || k.box[0] != 64 {
			return false
		}
		if block != nil {
			continue
		}
		if k.box[1] != boxes[i] {
			return false
		}
		strides := [...]int64{1, v.row, v.head, v.batch}
		for d, n := range k.dims {
			if n != uint64(shape[3-d]) || d > 0 && n > 1 && k.strides[d-1] != uint64(2*strides[d]) {
				return false
			}
		}
	}
	return true
}
