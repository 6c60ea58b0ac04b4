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
type seqCache struct {
	mu      sync.Mutex // from before the lists are looked at until what reads them is enqueued
	at      Pointer
	words   int // that there is room for
	seqInts []int32
	seqLens [5]int
}

// foreignLists are those of streams of other libraries. A handle may be that of a stream which is gone, whose work still
// reads its lists: streams are told apart by a number that no other one ever has.
type foreignCaches struct {
	mu     sync.Mutex // as that of keptLists
	caches map[uint64]*seqCache
}

// mostForeign bounds the streams that keep lists: nobody says when one of them ends.
const maxForeign = 64

// of returns those of a stream, nil if it keeps none.
func (f *foreignCaches) of(d *Driver, s StreamHandle) (*seqCache, error) {
	if d.StreamGetID == nil {
		return nil, nil
	}
	id, err := d.StreamGetID(s)
	k := f.caches[id]
	if err == nil && k == nil && len(f.caches) < maxForeign {
		if f.caches == nil {
			f.caches = map[uint64]*seqCache{}
		}
		k = new(seqCache)
		f.caches[id] = k
	}
	return k, err
}

// close frees the memory, which nobody reads any more.
func (f *foreignCaches) close(d *Driver) (err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.caches {
		if k.words > 0 {
			err = errors.Join(err, d.MemFree(k.at))
		}
	}
	f.caches = nil
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
	x.seqArrays, x.seqLens, x.seqWords, x.seqInts = [5][]int32{}, [5]int{}, 0, x.seqInts[:0]
	if s == nil {
		return
	}
	x.seqArrays = [...][]int32{s.QLens, s.QStarts, s.KVLens, s.KVStarts, s.Pages}
	for i, list := range x.seqArrays {
		x.seqLens[i] = len(list)
		x.seqWords += len(list)
	}
}

// join puts the lists one after the other, if they are not yet.
func (x *arguments) joinSeqs() {
	if len(x.seqInts) == x.seqWords {
		return
	}
	for _, list := range x.seqArrays {
		x.seqInts = append(x.seqInts, list...)
	}
}

// says reports whether the lists are those that are kept. Tables are long: they are joined only if they are not.
func (k *seqCache) equal(x *arguments) bool {
	if k.seqLens != x.seqLens {
		return false
	}
	if len(x.seqInts) == x.seqWords {
		return bytes.Equal(bytesOf(k.seqInts), bytesOf(x.seqInts))
	}
	at := 0
	for _, list := range x.seqArrays {
		if !bytes.Equal(bytesOf(k.seqInts[at:][:len(list)]), bytesOf(list)) {
			return false
		}
		at += len(list)
	}
	return true
}

// point says where the lists lie on the device.
func (x *arguments) setSeqPointers(at Pointer) {
	f := &x.features
	for i, p := range [...]*Pointer{&f.qLens, &f.qStarts, &f.kvLens, &f.kvStarts, &f.pages} {
		if x.seqLens[i] > 0 {
			*p = at
		}
		at += Pointer(4 * x.seqLens[i])
	}
	f.pageWidth = int32(x.seqLens[4] / max(1, int(x.batch)))
}

// copyInts copies what the sequences say to the device, in the order of the stream. The
// driver has read the host's memory when the copy is enqueued, as that is not pinned.
func (x *arguments) copySeqs(d *Driver, to Pointer, s StreamHandle) error {
	x.setSeqPointers(to)
	x.joinSeqs()
	return d.MemcpyHtoDAsync(to, unsafe.Pointer(unsafe.SliceData(x.seqInts)), 4*len(x.seqInts), s)
}

// keepInts is copyInts to the memory of the stream, unless the same lies there; it reports
// whether there is such memory. A graph has memory of its own: later calls change the stream's.
func (x *arguments) cacheSeqs(b *Backend, s StreamHandle) (bool, error) {
	k := x.kept
	if k == nil && x.foreign == nil || x.seqWords == 0 || b.drv.StreamIsCapturing == nil {
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
	if k.equal(x) {
		x.setSeqPointers(k.at)
		return true, nil
	}
	k.seqLens = [5]int{} // until the copy is enqueued
	if err := k.grow(b.drv, x.seqWords, s); err != nil {
		return false, err
	}
	if err := x.copySeqs(b.drv, k.at, s); err != nil {
		return false, err
	}
	k.seqInts, k.seqLens = append(k.seqInts[:0], x.seqInts...), x.seqLens
	return true, nil
}

// grow makes room for so many numbers, in the order of the stream.
func (k *seqCache) grow(d *Driver, words int, s StreamHandle) error {
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
func (k *seqCache) free(d *Driver, s StreamHandle) error {
	if k.words == 0 {
		return nil
	}
	at := k.at
	k.at, k.words, k.seqLens = 0, 0, [5]int{}
	return d.MemFreeAsync(at, s)
}

// bytesOf returns the memory of numbers.
func bytesOf(n []int32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(n))), 4*len(n))
}
