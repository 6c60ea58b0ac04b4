package cuda

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// keptLists is the device's memory of a stream for what sequences say. It stays after a call, so
// that one which says the same, of the next layer of a model, copies nothing.
type keptLists struct {
	mu    sync.Mutex // from before the lists are looked at until what reads them is enqueued
	at    Pointer
	words int // that there is room for
	ints  []int32
	sides [5]int
}

// foreignLists are those of streams of other libraries. A handle may be that of a stream which is gone, whose work still
// reads its lists: streams are told apart by a number that no other one ever has.
type foreignLists struct {
	mu    sync.Mutex // as that of keptLists
	lists map[uint64]*keptLists
}

// mostForeign bounds the streams that keep lists: nobody says when one of them ends.
const mostForeign = 64

// of returns those of a stream, nil if it keeps none.
func (f *foreignLists) of(d *Driver, s StreamHandle) (*keptLists, error) {
	if d.StreamGetID == nil {
		return nil, nil
	}
	id, err := d.StreamGetID(s)
	k := f.lists[id]
	if err == nil && k == nil && len(f.lists) < mostForeign {
		if f.lists == nil {
			f.lists = map[uint64]*keptLists{}
		}
		k = new(keptLists)
		f.lists[id] = k
	}
	return k, err
}

// close frees the memory, which nobody reads any more.
func (f *foreignLists) close(d *Driver) (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.lists {
		if k.words > 0 {
			err = errors.Join(err, d.MemFree(k.at))
		}
	}
	f.lists = nil
	return err
}

// packedRows returns the first row of packed sequences, and how many rows they have.
func packedRows(starts []int32) (first, n int) {
	first = int(starts[0])
	return first, int(starts[len(starts)-1]) - first
}

// fromZero returns starts that begin at 0.
func fromZero(starts []int32) []int32 {
	list := slices.Clone(starts)
	for i := range list {
		list[i] -= starts[0]
	}
	return list
}

// setSequences keeps what the sequences say.
func (x *arguments) setSequences(s *flashkit.Sequences) {
	x.lists, x.sides, x.words, x.ints = [5][]int32{}, [5]int{}, 0, x.ints[:0]
	if s == nil {
		return
	}
	x.lists = [...][]int32{s.QLens, s.QStarts, s.KVLens, s.KVStarts, s.Pages}
	for i, list := range x.lists {
		x.sides[i] = len(list)
		x.words += len(list)
	}
}

// join puts the lists one after the other, if they are not yet.
func (x *arguments) join() {
	if len(x.ints) == x.words {
		return
	}
	for _, list := range x.lists {
		x.ints = append(x.ints, list...)
	}
}

// says reports whether the lists are those that are kept. Tables are long: they are joined only if they are not.
func (k *keptLists) says(x *arguments) bool {
	if k.sides != x.sides {
		return false
	}
	if len(x.ints) == x.words {
		return bytes.Equal(bytesOf(k.ints), bytesOf(x.ints))
	}
	at := 0
	for _, list := range x.lists {
		if !bytes.Equal(bytesOf(k.ints[at:][:len(list)]), bytesOf(list)) {
			return false
		}
		at += len(list)
	}
	return true
}

// point says where the lists lie on the device.
func (x *arguments) point(at Pointer) {
	f := &x.features
	for i, p := range [...]*Pointer{&f.qLens, &f.qStarts, &f.kvLens, &f.kvStarts, &f.pages} {
		if x.sides[i] > 0 {
			*p = at
		}
		at += Pointer(4 * x.sides[i])
	}
	f.pageWidth = int32(x.sides[4] / max(1, int(x.batch)))
}

// copyInts copies what the sequences say to the device, in the order of the stream. The
// driver has read the host's memory when the copy is enqueued, as that is not pinned.
func (x *arguments) copyInts(d *Driver, to Pointer, s StreamHandle) error {
	x.point(to)
	x.join()
	return d.MemcpyHtoDAsync(to, unsafe.Pointer(unsafe.SliceData(x.ints)), 4*len(x.ints), s)
}

// keepInts is copyInts to the memory of the stream, unless the same lies there; it reports
// whether there is such memory. A graph has memory of its own: later calls change the stream's.
func (x *arguments) keepInts(b *Backend, s StreamHandle) (bool, error) {
	k := x.kept
	if k == nil && x.foreign == nil || x.words == 0 || b.drv.StreamIsCapturing == nil {
		return false, nil
	}
	if captures, err := b.drv.StreamIsCapturing(s); err != nil || captures {
		return false, err
	}
	if k == nil {
		var err error
		if k, err = x.foreign.of(b.drv, s); k == nil || err != nil {
			return false, err
		}
	}
	if k.says(x) {
		x.point(k.at)
		return true, nil
	}
	k.sides = [5]int{} // until the copy is enqueued
	if err := k.grow(b.drv, x.words, s); err != nil {
		return false, err
	}
	if err := x.copyInts(b.drv, k.at, s); err != nil {
		return false, err
	}
	k.ints, k.sides = append(k.ints[:0], x.ints...), x.sides
	return true, nil
}

// grow makes room for so many numbers, in the order of the stream.
func (k *keptLists) grow(d *Driver, words int, s StreamHandle) error {
	if words <= k.words {
		return nil
	}
	if err := k.free(d, s); err != nil {
		return err
	}
	words = ceilDiv(words+words/4, granule) * granule
	at, err := d.MemAllocAsync(4*words, s)
	if err == nil {
		k.at, k.words = at, words
	}
	return err
}

// free frees the memory, in the order of the stream.
func (k *keptLists) free(d *Driver, s StreamHandle) error {
	if k.words == 0 {
		return nil
	}
	at := k.at
	k.at, k.words, k.sides = 0, 0, [5]int{}
	return d.MemFreeAsync(at, s)
}

// bytesOf returns the memory of numbers.
func bytesOf(n []int32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(n))), 4*len(n))
}
