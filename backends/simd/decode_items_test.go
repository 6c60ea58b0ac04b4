//go:build (amd64 || arm64) && !purego

package simd

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// tableOf returns a job whose item table is filled for a call.
func tableOf(t *testing.T, p flashkit.Problem, args *flashkit.Args) *job {
	j := &job{}
	var c flashkit.Call
	require.NoError(t, c.Set(p, flashkit.PassForward, args))
	j.reset(&c)
	j.args = args
	planDecodeLanes(&j.plan)
	j.cutDecode()
	j.Shared.Reserve(j.plan.shared)
	return j
}

// Every chunk of every head belongs to one item. Every row of a split head belongs to one item that
// merges. Long items come first, and no two chunks share a result.
func TestDecodeItems(t *testing.T) {
	slow.UnderRace(t)
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for range 300 {
		p := flashkit.Problem{Batch: 1 + r.IntN(40), KVHeads: 1 + r.IntN(5), QLen: 1 + r.IntN(3), KVLen: 1 + r.IntN(9000), Dim: 64, VDim: 64,
			Band: []flashkit.Band{{}, flashkit.Causal(), flashkit.Window(700, 0)}[r.IntN(3)]}
		p.Heads, p.Ragged = p.KVHeads*(1+r.IntN(3)), r.IntN(4) > 0
		one := p
		one.Batch, one.KVLen = 1, 1
		args := flashkit.NewArgs(one, flashkit.PassForward)
		for _, x := range []*flashkit.Tensor{&args.Q, &args.O, &args.LSE} {
			s := x.Shape()
			*x = flashkit.F32(make([]float32, p.Batch*s[1]*s[2]*s[3]), p.Batch, s[1], s[2], s[3])
		}
		for _, x := range []*flashkit.Tensor{&args.K, &args.V} { // which are not read
			*x = flashkit.F32(make([]float32, 64), p.Batch, p.KVHeads, p.KVLen, 64).WithStrides(0, 0, 0)
		}
		if p.Ragged {
			args.Seqs = &flashkit.Sequences{}
			for range p.Batch {
				args.Seqs.QLens = append(args.Seqs.QLens, int32(r.IntN(p.QLen+1)))
				args.Seqs.KVLens = append(args.Seqs.KVLens, int32(r.IntN(p.KVLen+1)))
			}
			if r.IntN(2) == 0 {
				p.Page = 1 + r.IntN(20)
				args.Seqs.Pages = make([]int32, p.Batch*ceilDiv(p.KVLen, p.Page))
				p.KVLen = ceilDiv(p.KVLen, p.Page) * p.Page
				for _, x := range []*flashkit.Tensor{&args.K, &args.V} {
					*x = flashkit.F32(make([]float32, 64), 1, p.KVHeads, p.Page, 64).WithStrides(0, 0, 0)
				}
			}
		}
		j := tableOf(t, p, args)
		chunks, rows, results := map[string]int{}, map[string]int{}, map[*float32]bool{}
		for item, last := 0, 1<<60; item < j.work[0].Items; item++ {
			var x itemOfKeys
			for turn, turns := 0, 1; turn < turns; turn++ {
				turns = x.setItem(j, item, turn)
				for c := x.from; c < x.to; c++ {
					chunks[fmt.Sprint(x.b, x.g, c)]++
					if x.isSplit() && x.rows > 0 {
						m, o := x.result(c)
						require.False(t, results[&m[0]] || len(m) != x.rows || len(o) != x.rows*x.oStep)
						results[&m[0]] = true
					}
				}
			}
			if x.from == 0 {
				require.LessOrEqual(t, min(x.last-x.first, x.run*x.chunk), last)
				last = min(x.last-x.first, x.run*x.chunk)
			}
		}
		for item := range j.work[1].Items {
			var x itemOfKeys
			first, from, to := x.setRows(j, item)
			for row := from; row < to; row++ {
				x.setHead(j, first, row/x.written)
				rows[fmt.Sprint(x.b, x.g, row%x.written)]++
			}
		}
		wantChunks, wantRows := 0, 0
		for b := range p.Batch {
			d := j.splitOf(b)
			wantChunks += p.KVHeads * d.chunks
			if d.isSplit() {
				wantRows += p.KVHeads * d.written
			}
		}
		require.Len(t, chunks, wantChunks, "%v %+v", p, args.Seqs)
		require.Len(t, rows, wantRows, "%v %+v", p, args.Seqs)
		for _, list := range []map[string]int{chunks, rows} {
			for at, n := range list {
				require.Equal(t, 1, n, "%v: %s", p, at)
			}
		}
	}
}

// Heads take turns if pages are short and each worker still gets items.
func TestDecodeTurns(t *testing.T) {
	for name, want := range map[string]int{
		"b1-h32-g8-n1-m4096-d128-f32-ragged-page1":       8,
		"b1-h32-g8-n1-m4096-d128-bf16-ragged-page32":     8,
		"b1-h32-g8-n1-m4096-d128-f32-ragged-page64":      1,
		"b1-h32-g8-n1-m4096-d128-f32-ragged":             1,
		"b1-h64-g2-n2-m4096-d128-f16-ragged-page1":       1,
		"b64-h3-g3-n1-m10-d64-f32-ragged-page4":          3,
		"b1-h12-g12-n1-m100-d64-f32-kvbf16-ragged-page1": 6,
	} {
		c := parsed(t, name).Ask(flashkit.PassForward)
		c.Workers = 1
		require.Equal(t, want, planned(c, planDecodeLanes).decode.turns, name)
		require.Equal(t, 1, planned(c, func(pl *plan) { pl.planDecode(1, 0) }).decode.turns, name)
	}
}

// A call with few heads is split into items for many processors. A call with many heads needs no
// merge.
func TestDecodeSpreads(t *testing.T) {
	for name, want := range map[string]struct{ least, most, merges int }{
		"b1-h8-g1-n1-m4096-d128-bf16":             {16, 64, 1},
		"b1-h32-g8-n1-m1024-d128-bf16":            {16, 128, 1},
		"b1-h32-g8-n1-m4096-d128-f32":             {48, 128, 1},
		"b1-h32-g8-n1-m131072-d128-bf16":          {128, 1024, 1},
		"b32-h32-g8-n1-m4096-d128-bf16":           {256, 256, 0},
		"b4-h32-g8-n1-m4096-d64-bf16":             {64, 256, 1},
		"b1-h128-g128-n1-m2048-d64-bf16":          {128, 128, 0},
		"b1-h1-g1-n1-m100-d64-f32":                {1, 1, 0},
		"b1-h64-g1-n1-m32768-d128-f32":            {16, 128, 1},
		"b1-h4-g4-n1-m8192-d64-f32-causal":        {48, 128, 1},
		"b64-h8-g8-n1-m100000-d64-f16":            {512, 1 << 14, 1},
		"b1-h2-g2-n1-m1048576-d64-bf16":           {256, 1024, 1},
		"b1-h2-g2-n1-m65536-d64-f32-window4096.0": {16, 64, 1},
	} {
		work := planned(parsed(t, name).Ask(flashkit.PassForward), func(pl *plan) { pl.planDecode(1, 0) }).work
		require.GreaterOrEqual(t, work[0].Items, want.least, name)
		require.LessOrEqual(t, work[0].Items, want.most, name)
		require.Equal(t, want.merges, min(1, work[1].Items), name)
	}
}
