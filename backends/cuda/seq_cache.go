package cuda

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// A seqCache is a stream's copy of sequence arrays on the device. The copy remains after a call, so
// that the next call with the same sequences, such as a model's next layer, copies nothing.
type seqCache struct {
	mu      sync.Mutex // held from the comparison of the arrays until the kernels that read the arrays are enqueued
	at      Pointer
	words   int // capacity
	seqInts []int32
	seqLens [5]int
}

// foreignCaches are the caches of streams of other libraries, by stream ID. The driver never uses
// an ID again. But it may reuse a handle while work of the handle's former stream still reads the
// arrays.
type foreignCaches struct {
	mu     sync.Mutex // as in seqCache
	caches map[uint64]*seqCache
}

// maxForeign is the maximum number of foreign streams with a cache. The caches stay until Close,
// because the end of such a stream is unknown.
const maxForeign = 64

// of returns the cache of a stream, and creates it if necessary. It returns nil if maxForeign other
// caches exist or the driver has no stream IDs.
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

// close frees the caches. No work on the device may still read the caches.
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

// packedRows returns the first row and the number of rows of packed sequences.
func packedRows(starts []int32) (first, n int) {
	first = int(starts[0])
	return first, int(starts[len(starts)-1]) - first
}

// fromZero returns a copy of starts, shifted so that the first start is 0.
func fromZero(starts []int32) []int32 {
	list := slices.Clone(starts)
	for i := range list {
		list[i] -= starts[0]
	}
	return list
}

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

// joinSeqs concatenates the arrays into seqInts, unless seqInts holds them already.
func (x *arguments) joinSeqs() {
	if len(x.seqInts) == x.seqWords {
		return
	}
	for _, list := range x.seqArrays {
		x.seqInts = append(x.seqInts, list...)
	}
}

// equal reports whether the cache holds the arrays of x, without concatenating long page tables.
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

// setSeqPointers sets the device addresses of the concatenated arrays.
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

// copySeqs copies the arrays to the device in stream order. The driver has read the pageable host
// memory when MemcpyHtoDAsync returns. A graph is different: each replay reads the host memory
// again, so a captured copy reads memory that the backend keeps.
func (x *arguments) copySeqs(b *Backend, to Pointer, s StreamHandle) error {
	x.setSeqPointers(to)
	x.joinSeqs()
	source := x.seqInts
	if captures, err := b.captures(s); err != nil {
		return err
	} else if captures {
		source = b.captured.keep(source)
	}
	return b.drv.MemcpyHtoDAsync(to, unsafe.Pointer(unsafe.SliceData(source)), 4*len(source), s)
}

// capturedSeqs are the sequence arrays of captured calls. The arrays stay until the backend's
// Close, because a graph may be replayed until then.
type capturedSeqs struct {
	mu     sync.Mutex
	arrays [][]int32
}

// keep returns a copy of the arrays that no call overwrites.
func (c *capturedSeqs) keep(seqInts []int32) []int32 {
	own := slices.Clone(seqInts)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrays = append(c.arrays, own)
	return own
}

// captures reports whether a graph captures the stream's work.
func (b *Backend) captures(s StreamHandle) (bool, error) {
	if b.drv.StreamIsCapturing == nil {
		return false, nil
	}
	return b.drv.StreamIsCapturing(s)
}

// cacheSeqs copies the sequence arrays to the stream's cache, unless the cache holds equal arrays,
// and reports whether the call uses the cache. A call that a graph captures uses no cache, because
// later calls overwrite the cache.
func (x *arguments) cacheSeqs(b *Backend, s StreamHandle) (bool, error) {
	k := x.kept
	if k == nil && x.foreign == nil || x.seqWords == 0 || b.drv.StreamIsCapturing == nil {
		return false, nil
	}
	if captures, err := b.captures(s); err != nil || captures {
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
	k.seqLens = [5]int{} // invalid until the copy is enqueued
	if err := k.grow(b.drv, x.seqWords, s); err != nil {
		return false, err
	}
	if err := x.copySeqs(b, k.at, s); err != nil {
		return false, err
	}
	k.seqInts, k.seqLens = append(k.seqInts[:0], x.seqInts...), x.seqLens
	return true, nil
}

// grow makes room for at least the given number of words, in stream order.
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

func (k *seqCache) free(d *Driver, s StreamHandle) error {
	if k.words == 0 {
		return nil
	}
	at := k.at
	k.at, k.words, k.seqLens = 0, 0, [5]int{}
	return d.MemFreeAsync(at, s)
}

func bytesOf(n []int32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(n))), 4*len(n))
}
