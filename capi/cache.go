package main

// #include <stdlib.h>
// #include "abi.h"
import "C"

import (
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/nn"
)

// A cache is the object behind an fk_cache. C programs have pointers to its arrays. Keys, values and
// scales are memory of C, which the garbage collector does not count, and which may be exhausted.
type cache struct {
	mu     sync.Mutex
	kv     *nn.KVCache
	config nn.KVCacheConfig
	memory []unsafe.Pointer // of C; nil where C had no memory
	pinned runtime.Pinner   // lengths, positions and page tables
	lent   []uintptr        // addresses of the pinned arrays
}

//export abiCacheNew
func abiCacheNew(from *C.fk_cache_config, out *C.abi_handle, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	for _, t := range [...]struct {
		name  string
		dtype C.int32_t
	}{{"config.dtype", from.dtype}, {"config.scale_dtype", from.scale_dtype}} {
		if t.dtype < 0 || t.dtype > C.FK_I8 {
			return report(e, wrong(C.FK_ERR_DTYPE, t.name, t.dtype, "must be an element type"))
		}
	}
	c := &cache{config: nn.KVCacheConfig{
		Batch: int(from.batch), Heads: int(from.kv_heads), Capacity: int(from.capacity), Dim: int(from.dim), DType: flashkit.DType(from.dtype),
		Page: int(from.page), Pages: int(from.pages), Int8Group: int(from.int8group), Scales: flashkit.DType(from.scale_dtype),
	}}
	c.config.Zeros = c.zeros
	var err error
	if c.kv, err = nn.NewKVCache(c.config); err != nil {
		return report(e, err)
	}
	if slices.Contains(c.memory, nil) {
		c.free()
		return write(e, C.FK_ERR_MEMORY, "", "flashkit: no memory for the cache")
	}
	*out = C.abi_handle(caches.add(c))
	return C.FK_OK
}

//export abiCacheFree
func abiCacheFree(h C.abi_handle, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	c, ok := caches.remove(uintptr(h))
	if !ok {
		return report(e, stale("cache", uintptr(h)))
	}
	c.free()
	return C.FK_OK
}

func (c *cache) free() {
	c.pinned.Unpin()
	for _, at := range c.memory {
		C.free(at)
	}
}

// zeros returns a tensor in memory of C, or a zero Tensor if there is no memory.
func (c *cache) zeros(t flashkit.DType, batch, heads, rows, row int) flashkit.Tensor {
	const align = 64
	n := batch * heads * rows * row
	at := C.calloc(1, C.size_t(n*t.Size()+align))
	c.memory = append(c.memory, at)
	if at == nil {
		return flashkit.Tensor{}
	}
	at = unsafe.Add(at, align-uintptr(at)%align)
	switch t {
	case flashkit.Float32:
		return flashkit.F32(unsafe.Slice((*float32)(at), n), batch, heads, rows, row)
	case flashkit.Float16:
		return flashkit.F16(unsafe.Slice((*uint16)(at), n), batch, heads, rows, row)
	case flashkit.BFloat16:
		return flashkit.BF16(unsafe.Slice((*uint16)(at), n), batch, heads, rows, row)
	}
	return flashkit.Int8s(unsafe.Slice((*int8)(at), n), batch, heads, rows, row)
}

// with calls f with the locked cache of a handle, and reports the error of f.
func (h abiCache) with(e *C.fk_error, f func(c *cache) error) C.int {
	held := caches.hold(uintptr(h))
	if held == nil {
		return report(e, stale("cache", uintptr(h)))
	}
	defer held.release()
	c := held.value
	c.mu.Lock()
	defer c.mu.Unlock()
	return report(e, f(c))
}

type abiCache C.abi_handle

//export abiCacheAppend
func abiCacheAppend(h C.abi_handle, k, v *C.fk_tensor, lens C.uintptr_t, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	return abiCache(h).with(e, func(c *cache) error {
		rows := nn.Rows{Batch: c.config.Batch}
		keys, err := c.rows("k", k, nil)
		if err != nil {
			return err
		}
		values, err := c.rows("v", v, &keys)
		if err != nil {
			return err
		}
		rows.T = keys.Shape()[2]
		if reason := addressFault(uintptr(lens), 4); lens != 0 && reason != "" {
			return wrong(C.FK_ERR_STRIDE, "lens", hex(uintptr(lens)), "%s", reason)
		} else if lens != 0 {
			rows.Lens = unsafe.Slice(*(**int32)(unsafe.Pointer(&lens)), rows.Batch)
		}
		for b, n := range rows.Lens {
			if n < 0 || int(n) > rows.T {
				return wrong(C.FK_ERR_VALUE, element("lens", b), n, "must be from 0 to the rows of k, %d", rows.T)
			}
		}
		return c.kv.Append(c.widened(&keys, rows), c.widened(&values, rows))
	})
}

// rows converts k or v, and returns an error if it cannot be appended. like is k if t is v.
func (c *cache) rows(name string, from *C.fk_tensor, like *flashkit.Tensor) (t flashkit.Tensor, err error) {
	if from == nil {
		return t, stale(name, 0)
	}
	if from.device != C.FK_HOST {
		return t, wrong(C.FK_ERR_VALUE, name+".device", from.device, "must be FK_HOST")
	}
	var f frame
	if err := f.view(from, &t, name); err != nil {
		return t, err
	}
	has := t.Shape()
	want := [4]int{c.config.Batch, c.config.Heads, has[2], c.config.Dim}
	if like != nil {
		want[2] = like.Shape()[2]
	}
	switch {
	case t.IsZero():
		return t, stale(name, 0)
	case t.DType() > flashkit.BFloat16:
		return t, wrong(C.FK_ERR_DTYPE, name+".dtype", t.DType(), "must be f32, f16 or bf16")
	case has[3] != want[3]:
		return t, wrong(C.FK_ERR_HEAD_DIM, name+".shape", has, "must be %v", want)
	case has != want:
		return t, wrong(C.FK_ERR_DIMENSION, name+".shape", has, "must be %v", want)
	}
	return t, nil
}

// widened returns a copy of t in float32, with all heads of a key in one row.
func (c *cache) widened(t *flashkit.Tensor, rows nn.Rows) nn.Tensor {
	heads, dim := c.config.Heads, c.config.Dim
	to := nn.Tensor{Data: make([]float32, rows.Batch*rows.T*heads*dim), Features: heads * dim, Rows: rows}
	for b := range rows.Batch {
		n := rows.T
		if rows.Lens != nil {
			n = int(rows.Lens[b])
		}
		for i := range n {
			for h := range heads {
				x, at := to.Row(b*rows.T + i)[h*dim:][:dim], t.Offset(b, h, i)
				switch t.DType() {
				case flashkit.Float32:
					copy(x, t.Float32s()[at:])
				case flashkit.Float16:
					widen(x, t.Uint16s()[at:], half.FromF16)
				default:
					widen(x, t.Uint16s()[at:], half.FromBF16)
				}
			}
		}
	}
	return to
}

func widen(to []float32, x []uint16, from func(uint16) float32) {
	for i := range to {
		to[i] = from(x[i])
	}
}

//export abiCacheChange
func abiCacheChange(h C.abi_handle, kind C.int, seq, x, y C.int64_t, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	return abiCache(h).with(e, func(c *cache) error {
		switch kind {
		case C.CACHE_TRUNCATE:
			return c.kv.Truncate(int(seq), int(x))
		case C.CACHE_REMOVE:
			return c.kv.Remove(int(seq))
		case C.CACHE_FORK:
			return c.kv.Fork(int(seq), int(x))
		case C.CACHE_EVICT:
			return c.kv.Evict(int(seq), int(x), int(y))
		}
		c.kv.Reset()
		return nil
	})
}

//export abiCacheArgs
func abiCacheArgs(h C.abi_handle, a *C.fk_args, prefix *C.fk_prefix, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	return abiCache(h).with(e, func(c *cache) error {
		seqs, width := c.kv.Sequences(), 0
		k, v := c.kv.View()
		kScale, vScale := c.kv.Scales()
		if c.config.Page > 0 {
			width = c.config.Capacity / c.config.Page
		}
		if prefix != nil {
			var first dispatch.Prefix
			first, seqs = c.kv.Prefix()
			width -= len(first.Pages) // without pages, both are 0
			lend(&prefix.k, &k)
			lend(&prefix.v, &v)
			setWord(&prefix.pages, c.pin(unsafe.Pointer(unsafe.SliceData(first.Pages))))
			prefix.page_count, prefix.len = C.int64_t(len(first.Pages)), C.int64_t(first.Len)
		}
		lend(&a.k, &k)
		lend(&a.v, &v)
		lend(&a.kscale, &kScale)
		lend(&a.vscale, &vScale)
		a.seqs, a.pages_per_seq, a.seqs_device = C.int64_t(c.config.Batch), C.int64_t(width), 0
		setWord(&a.kv_lens, c.pin(unsafe.Pointer(unsafe.SliceData(seqs.KVLens))))
		setWord(&a.pages, c.pin(unsafe.Pointer(unsafe.SliceData(seqs.Pages))))
		setWord(&a.kv_starts, 0)
		return nil
	})
}

//export abiCacheState
func abiCacheState(h C.abi_handle, next **C.int32_t, freePages *C.int64_t, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	return abiCache(h).with(e, func(c *cache) error {
		setWord(next, c.pin(unsafe.Pointer(unsafe.SliceData(c.kv.Next()))))
		*freePages = C.int64_t(c.kv.FreePages())
		return nil
	})
}

// lend sets a C tensor to the memory of a tensor of the cache.
func lend(to *C.fk_tensor, t *flashkit.Tensor) {
	setWord(&to.data, t.Address())
	shape, strides := t.Shape(), t.Strides()
	for d := range shape {
		to.shape[d], to.strides[d] = C.int64_t(shape[d]), C.int64_t(strides[d])
	}
	to.dtype, to.device = C.int32_t(t.DType()), C.FK_HOST
}

// pin pins an array of the cache until the cache is freed, and returns its address.
func (c *cache) pin(at unsafe.Pointer) uintptr {
	if at != nil && !slices.Contains(c.lent, uintptr(at)) {
		c.pinned.Pin(at)
		c.lent = append(c.lent, uintptr(at))
	}
	return uintptr(at)
}

// setWord writes an address to a pointer field of a C structure. Go must not treat the field's old
// value as a pointer.
func setWord[T any](p *T, at uintptr) { *(*uintptr)(unsafe.Pointer(p)) = at }
