package cuda

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// Sequence arrays are copied to the stream's cache when they change; a graph has its own copy.
func TestKeptLists(t *testing.T) {
	b, f := openFake(t)
	c := newDeviceCall(t, b, "b3-h2-g1-n4-m21-d16-f32-ragged-page4")
	// run computes on the stream, with that many copies, and on another.
	run := func(copies int) {
		t.Helper()
		before := int(f.copies.Load())
		require.NoError(t, c.forward())
		require.Equal(t, copies, int(f.copies.Load())-before)
		got, s := c.download(t, c.args.O), c.s
		other, err := b.NewStream()
		require.NoError(t, err)
		c.s = other
		require.NoError(t, c.forward())
		require.Equal(t, got, c.download(t, c.args.O))
		require.NoError(t, other.Close())
		c.s = s
	}
	run(1)
	run(0)
	seqs := c.args.Seqs
	seqs.KVLens[1]--
	run(1)
	run(0)
	seqs.Pages[0], seqs.Pages[1] = seqs.Pages[1], seqs.Pages[0]
	run(1)
	f.captures = true
	run(1)
	run(1)
	f.captures = false
	run(0)
	seqs.KVLens[1]--
	f.failures["cuMemcpyHtoDAsync"] = f.fail("cuMemcpyHtoDAsync", 2)
	require.Error(t, c.forward())
	clear(f.failures)
	seqs.KVLens[1]++ // as the stream had it before the failed copy
	run(1)
	pages := append(slices.Clone(seqs.Pages), make([]int32, 3000)...) // a longer list
	c.p.KVLen, c.args.Seqs = 4*len(pages)/3, &flashkit.Sequences{KVLens: seqs.KVLens, Pages: pages}
	run(1)
	run(0)
	c.close(t)
}

// The copy in a graph reads its source at each replay: no later call may overwrite the arrays.
func TestCapturedArraysStay(t *testing.T) {
	b, f := openFake(t)
	c := newDeviceCall(t, b, "b3-h2-g1-n4-m21-d16-f32-ragged-page4")
	type source struct {
		now, captured []byte
	}
	var sources []source
	upload := b.drv.MemcpyHtoDAsync
	b.drv.MemcpyHtoDAsync = func(to Pointer, from unsafe.Pointer, n int, s StreamHandle) error {
		if f.captures {
			memory := unsafe.Slice((*byte)(from), n)
			sources = append(sources, source{memory, slices.Clone(memory)})
		}
		return upload(to, from, n, s)
	}
	for range 5 {
		f.captures = true
		require.NoError(t, c.forward())
		f.captures = false
		c.args.Seqs.KVLens[1]--
		require.NoError(t, c.forward())
	}
	require.Len(t, sources, 5)
	for _, x := range sources {
		require.Equal(t, x.captured, x.now)
	}
	c.close(t)
}

// A stream of another library also has a cache, whatever wraps it, but a later stream with its
// handle has another.
func TestKeptListsOfForeignStreams(t *testing.T) {
	b, f := openFake(t)
	c := newDeviceCall(t, b, "b3-h2-g1-n4-m21-d16-f32-ragged-page4")
	own := c.s
	run := func(handle StreamHandle, copies int) {
		t.Helper()
		c.s = b.WrapStream(handle)
		before := int(f.copies.Load())
		require.NoError(t, c.forward())
		require.Equal(t, copies, int(f.copies.Load())-before)
		require.NoError(t, c.s.Close())
	}
	run(own.handle, 1)
	run(own.handle, 0)
	run(0, 1)
	run(own.handle, 0)
	c.args.Seqs.KVLens[1]--
	run(own.handle, 1)
	run(own.handle, 0)
	f.captures = true
	run(own.handle, 1)
	f.captures = false
	run(own.handle, 0)
	f.failures["cuStreamGetId"] = f.fail("cuStreamGetId", 400)
	require.Error(t, c.forward())
	clear(f.failures)
	for range maxForeign { // one after the other with the same handle: the last cache nothing
		f.generation += 100
		run(own.handle, 1)
	}
	run(own.handle, 1)
	f.generation = 0
	run(own.handle, 0)
	f.StreamGetID = nil
	run(own.handle, 1)
	run(own.handle, 1)
	c.s = own
	c.close(t)
}
