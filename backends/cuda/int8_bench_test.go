//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"fmt"
	"testing"

	"github.com/flashkit-go/flashkit"
)

// BenchmarkInt8 times decode steps over int8 keys, and the same steps over bf16 keys, in CUDA
// graphs.
func BenchmarkInt8(b *testing.B) {
	x := newPages(b, benchGPU(b))
	for _, dim := range []int{128, 64} {
		for _, kvHeads := range []int{8, 32, 1} {
			for _, batch := range []int{1, 4, 16} {
				for _, page := range []int{0, 64} {
					p := flashkit.Problem{Batch: batch, Heads: 32, KVHeads: kvHeads, QLen: 1, KVLen: 32768, Dim: dim, VDim: dim, DType: flashkit.BFloat16, Page: page, Ragged: page > 0}
					wide := x.time(b, p, page > 0, true)
					for _, group := range []int{dim, 32} {
						p.Int8Group = group
						narrow := x.time(b, p, page > 0, true)
						fmt.Printf("%-55s %8.4f ms, bf16 keys %8.4f ms: %.3f\n", p, narrow, wide, wide/narrow)
					}
				}
			}
		}
	}
}

// scales sets the scales of a problem with int8 keys, in memory after the keys.
func (x *pages) scales(b *testing.B, c *deviceCall, keys [4]int) {
	if c.p.Int8Group == 0 {
		return
	}
	const row = 8 * 128
	keys[3] = (c.p.Dim-1)/c.p.Int8Group + 1
	half := pagedKeys * row // bytes of the int8 keys
	c.args.K = x.kv.Tensor(flashkit.Int8, 0, keys[0], keys[1], keys[2], c.p.Dim)
	c.args.V = x.kv.Tensor(flashkit.Int8, half, keys[0], keys[1], keys[2], c.p.Dim)
	c.args.KScale = x.kv.Tensor(flashkit.Float32, 2*half/4, keys[0], keys[1], keys[2], keys[3])
	c.args.VScale = x.kv.Tensor(flashkit.Float32, 2*half/4+pagedKeys*8*4, keys[0], keys[1], keys[2], keys[3])
}

// BenchmarkPrefix times decode steps of 32 sequences that begin with the same keys: plain, and as a
// step over the shared keys and one over each sequence's own keys that merges both.
func BenchmarkPrefix(b *testing.B) {
	x := newPages(b, benchGPU(b))
	for _, shared := range []int{4096, 16384} {
		const batch, own = 32, 256
		p := flashkit.Problem{Batch: batch, Heads: 32, KVHeads: 8, QLen: 1, KVLen: shared + own, Dim: 128, VDim: 128, DType: flashkit.BFloat16}
		plain := x.time(b, p, false, true)
		first, rest := p, p
		first.Batch, first.QLen, first.KVLen, rest.KVLen, rest.Carry = 1, batch, shared, own, true
		one, two := x.time(b, first, false, true), x.time(b, rest, false, true)
		fmt.Printf("%-50s %8.4f ms; %d shared keys %.4f ms, own keys %.4f ms: %.2f times\n", p, plain, shared, one, two, plain/(one+two))
	}
}
