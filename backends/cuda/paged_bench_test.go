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

// pagedKeys is the maximum number of keys of all sequences of BenchmarkPaged.
const pagedKeys = 1 << 21

// BenchmarkPaged times decode steps with keys in pages, in random order, and the same steps over
// the same memory without pages. Sequences are on the host, on the device, or on the device in a
// CUDA graph that is launched again, which isolates the GPU's share. Each step uses the chosen
// kernel.
func BenchmarkPaged(b *testing.B) {
	gpu := benchGPU(b)
	x := newPages(b, gpu)
	logs := map[int][3]float64{}
	count := map[int]float64{}
	for _, heads := range []int{32, 64} {
		for _, keys := range []int{1024, 4096, 16384, 131072} {
			for _, batch := range []int{1, 8, 32, 128} {
				if batch*keys > pagedKeys {
					continue
				}
				p := flashkit.Problem{Batch: batch, Heads: heads, KVHeads: 8, QLen: 1, KVLen: keys, Dim: 128, VDim: 128, DType: flashkit.BFloat16}
				plain := [...]float64{x.time(b, p, false, false), 0, x.time(b, p, false, true)}
				plain[1] = plain[0]
				for _, page := range []int{1, 16, 64} {
					p.Ragged, p.Page = true, page
					paged := [...]float64{x.time(b, p, false, false), x.time(b, p, true, false), x.time(b, p, true, true)}
					fmt.Printf("%-50s %9.4f ms contiguous, lists on the host %9.4f ms %6.3f, on the device %9.4f ms %6.3f; in graphs %9.4f ms, %9.4f ms %6.3f\n",
						p, plain[0], paged[0], plain[0]/paged[0], paged[1], plain[1]/paged[1], plain[2], paged[2], plain[2]/paged[2])
					l := logs[page]
					for i := range l {
						l[i] += math.Log(plain[i] / paged[i])
					}
					logs[page] = l
					count[page]++
				}
			}
		}
	}
	for page, l := range logs {
		mean := func(i int) float64 { return math.Exp(l[i] / count[page]) }
		fmt.Printf("pages of %d: contiguous over paged %.3f, lists on the device %.3f, in graphs %.3f (geometric means of %.0f)\n",
			page, mean(0), mean(1), mean(2), count[page])
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

// time returns the milliseconds of a problem, with its sequences on the device or the host, in a
// graph or not.
func (x *pages) time(b *testing.B, p flashkit.Problem, device, graph bool) float64 {
	c := &deviceCall{b: x.gpu, p: p, s: x.s}
	c.fwdOptions.Unpaired = true
	keys := [4]int{p.Batch, p.KVHeads, p.KVLen, p.Dim}
	if p.Page > 0 {
		keys[0], keys[2] = p.Batch*p.KVLen/p.Page, p.Page
	}
	tensor := func(m *Buffer, from int, s [4]int) flashkit.Tensor {
		return m.Tensor(flashkit.BFloat16, from, s[0], s[1], s[2], s[3])
	}
	o := p.OShape()
	c.args.Q, c.args.K, c.args.V = tensor(x.q, 0, p.QShape()), tensor(x.kv, 0, keys), tensor(x.kv, pagedKeys*8*128, keys)
	c.args.O, c.args.LSE = tensor(x.out, 0, o), x.out.Tensor(flashkit.Float32, 128*64*128/2, p.Batch, p.Heads, p.QLen, 1)
	x.scales(b, c, keys)
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
			c.args.Seqs = &flashkit.Sequences{PagesPerSeq: len(s.Pages) / p.Batch} // the host has none
		}
	}
	if !graph {
		return x.median(b, c, c.forward)
	}
	require.NoError(b, c.forward()) // loads the kernel
	var ms float64
	inGraph(b, c, func() { require.NoError(b, c.forward()) }, func(launch func()) {
		ms = x.median(b, c, func() error { launch(); return nil })
	})
	return ms
}

// median returns the milliseconds of a call.
func (x *pages) median(b *testing.B, c *deviceCall, call func() error) float64 {
	var ms []float64
	for total := 0.; len(ms) < 13 || total < 25 && len(ms) < 60; {
		ms = append(ms, c.timed(b, x.flush, x.from, x.to, call).Seconds()*1e3)
		total += ms[len(ms)-1]
	}
	ms = ms[3:] // warm-up
	slices.Sort(ms)
	return ms[len(ms)/2]
}

// list stores numbers in the memory of sequence arrays.
func (x *pages) list(b *testing.B, at int, n []int32) *Buffer {
	require.NoError(b, Upload(x.s, x.lists, 4*at, n))
	return &Buffer{b: x.gpu, address: x.lists.address + Pointer(4*at), bytes: 4 * len(n), foreign: true}
}
