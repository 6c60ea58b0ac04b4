package dispatch_test

import (
	"fmt"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
)

// 32 sequences decode after a prefix of 16384 keys and 256 own keys, in pages that the plain call
// shares too.
func BenchmarkForwardPrefix(b *testing.B) {
	const batch, shared, own, page, heads, group, dim = 32, 16384, 256, 64, 8, 4, 128
	const pages = shared/page + batch*own/page
	d := dispatch.New(simd.New())
	defer d.Close()
	for _, kv := range []flashkit.DType{flashkit.Float32, flashkit.BFloat16} {
		k, v := flashkit.Zeros(kv, pages, heads, page, dim), flashkit.Zeros(kv, pages, heads, page, dim)
		for _, x := range []flashkit.Tensor{k, v} {
			for i := range x.Float32s() {
				x.Float32s()[i] = float32(i%13) / 13
			}
			for i := range x.Uint16s() {
				x.Uint16s()[i] = uint16(0x3e00 + i%199)
			}
		}
		first, all, rest := make([]int32, shared/page), []int32{}, []int32{}
		for i := range first {
			first[i] = int32(i)
		}
		lens, ownLens := make([]int32, batch), make([]int32, batch)
		for s := range lens {
			lens[s], ownLens[s] = shared+own, own
			all = append(all, first...)
			for i := range own / page {
				rest = append(rest, int32(shared/page+s*own/page+i))
			}
			all = append(all, rest[len(rest)-own/page:]...)
		}
		q, o := flashkit.Zeros(flashkit.Float32, batch, heads*group, 1, dim), flashkit.Zeros(flashkit.Float32, batch, heads*group, 1, dim)
		for i := range q.Float32s() {
			q.Float32s()[i] = float32(i%7) / 7
		}
		args := &flashkit.Args{Q: q, K: k, V: v, O: o, Seqs: &flashkit.Sequences{KVLens: lens, Pages: all}}
		ctx := b.Context()
		b.Run(fmt.Sprintf("plain/%v", kv), func(b *testing.B) {
			p := flashkit.ProblemOf(args, flashkit.Band{})
			for b.Loop() {
				if err := d.Forward(ctx, p, args); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("prefix/%v", kv), func(b *testing.B) {
			prefix := &dispatch.Prefix{K: k, V: v, Pages: first, Len: shared}
			x := *args
			x.Seqs = &flashkit.Sequences{KVLens: ownLens, Pages: rest}
			p := flashkit.ProblemOf(&x, flashkit.Band{})
			b.ReportAllocs()
			for b.Loop() {
				if err := d.ForwardPrefix(ctx, p, prefix, &x); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
