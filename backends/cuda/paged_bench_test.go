//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// pagedKeys are the keys of all sequences of BenchmarkPaged, at most.
const pagedKeys = 1 << 21

// BenchmarkPaged times steps of decode whose keys lie in pages, in a random order, beside the same over the
// same memory without pages: with the lists from the host, and from the device's memory. Each is by the
// kernel that is chosen.
func BenchmarkPaged(b *testing.B) {
	gpu := benchGPU(b)
	x := newPages(b, gpu)
	logs := map[int][2]float64{}
	count := map[int]float64{}
	for _, heads := range []int{32, 64} {
		for _, keys := range []int{1024, 4096, 16384, 131072} {
			for _, batch := range []int{1, 8, 32, 128} {
				if batch*keys > pagedKeys {
					continue
				}
				p := flashkit.Problem{Batch: batch, Heads: heads, KVHeads: 8, QLen: 1, KVLen: keys, Dim: 128, VDim: 128, DType: flashkit.BFloat16}
				plain := x.time(b, p, false)
				for _, page := range []int{1, 16, 64} {
					p.Ragged, p.Page = true, page
					host, device := x.time(b, p, false), x.time(b, p, true)
					fmt.Printf("%-50s %9.4f ms contiguous, %9.4f ms in pages %6.3f, lists on the device %9.4f ms %6.3f\n", p, plain, host, plain/host, device, plain/device)
					l := logs[page]
					logs[page] = [2]float64{l[0] + math.Log(plain/host), l[1] + math.Log(plain/device)}
					count[page]++
				}
			}
		}
	}
	for page, l := range logs {
		fmt.Printf("pages of %d: contiguous over paged %.3f, lists on the device %.3f (geometric means of %.0f)\n",
			page, math.Exp(l[0]/count[page]), math.Exp(l[1]/count[page]), count[page])
	}
}

// pages are the memory of BenchmarkPaged.
type pages struct {
	gpu               *Backend
	s                 *Stream
	kv, q, out, lists *Buffer
	flush             func() error
	from, to          *Event
}

func newPages(b *testing.B, gpu *Backend) *pages {
	x := &pages{gpu: gpu}
	var err error
	x.s, err = gpu.NewStream()
	require.NoError(b, err)
	const row = 8 * 128 * 2 // bytes of a key of all heads
	for _, m := range []struct {
		to    **Buffer
		bytes int
	}{{&x.kv, 2 * pagedKeys * row}, {&x.q, 128 * 64 * 128 * 2}, {&x.out, 128*64*128*2 + 128*64*4}, {&x.lists, 4 * (pagedKeys + 1024)}} {
		*m.to, err = gpu.Alloc(m.bytes)
		require.NoError(b, err)
		if m.to != &x.lists {
			require.NoError(b, fillRandom(x.s, *m.to, flashkit.BFloat16, m.bytes/2))
		}
	}
	x.flush = newFlush(b, &deviceCall{b: gpu, s: x.s})
	for _, e := range []**Event{&x.from, &x.to} {
		*e, err = gpu.NewEvent()
		require.NoError(b, err)
	}
	b.Cleanup(func() {
		x.from.Close()
		x.to.Close()
		for _, m := range []*Buffer{x.kv, x.q, x.out, x.lists} {
			require.NoError(b, m.Free())
		}
		require.NoError(b, x.s.Close())
	})
	return x
}

// time returns the milliseconds of a problem, with its lists from the device or not.
func (x *pages) time(b *testing.B, p flashkit.Problem, device bool) float64 {
	c := &deviceCall{b: x.gpu, p: p, s: x.s}
	keys := [4]int{p.Batch, p.KVHeads, p.KVLen, p.Dim}
	if p.Page > 0 {
		keys[0], keys[2] = p.Batch*p.KVLen/p.Page, p.Page
	}
	tensor := func(m *Buffer, from int, s [4]int) flashkit.Tensor {
		return m.Tensor(flashkit.BFloat16, from, s[0], s[1], s[2], s[3])
	}
	o := p.OShape()
	c.args.Q, c.args.K, c.args.V = tensor(x.q, 0, p.QShape()), tensor(x.kv, 0, keys), tensor(x.kv, pagedKeys*p.KVHeads*p.Dim, keys)
	c.args.O, c.args.LSE = tensor(x.out, 0, o), x.out.Tensor(flashkit.Float32, 128*64*128/2, p.Batch, p.Heads, 1, 1)
	if p.Ragged {
		s := &flashkit.Sequences{}
		for range p.Batch {
			s.KVLens = append(s.KVLens, int32(p.KVLen))
		}
		for _, n := range rand.Perm(keys[0]) {
			s.Pages = append(s.Pages, int32(n))
		}
		c.args.Seqs = s
		if device {
			lens, table := x.list(b, 0, s.KVLens), x.list(b, 1024, s.Pages)
			c.fwdOptions.Sequences = &DeviceSequences{KVLens: lens, Pages: table}
		}
	}
	var ms []float64
	for total := 0.; len(ms) < 13 || total < 25 && len(ms) < 60; {
		ms = append(ms, c.timed(b, x.flush, x.from, x.to, c.forward).Seconds()*1e3)
		total += ms[len(ms)-1]
	}
	ms = ms[3:] // warm-up
	slices.Sort(ms)
	return ms[len(ms)/2]
}

// list puts numbers into the memory of the lists.
func (x *pages) list(b *testing.B, at int, n []int32) *Buffer {
	require.NoError(b, Upload(x.s, x.lists, 4*at, n))
	return &Buffer{b: x.gpu, address: x.lists.address + Pointer(4*at), bytes: 4 * len(n), foreign: true}
}
