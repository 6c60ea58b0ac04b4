package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/flashkit-go/flashkit"
)

// calledInTurns checks that a call does not reuse the plan of an earlier call with an equal Problem
// but other sequence lengths or another layout. The calls have full or short sequences, padded or
// packed. The first list of turns runs in order, the second in reverse order.
func calledInTurns(ctx context.Context, k flashkit.Kernel, parts int) error {
	ran := false
	for turn := range 2 {
		cases := turns()[turn]
		for i := range cases {
			if turn == 1 {
				i = len(cases) - 1 - i
			}
			x := &cases[i]
			in := *x.in
			for _, in.p.DType = range dtypes {
				if unsupported(k, &in, x.l) == nil {
					break
				}
			}
			if unsupported(k, &in, x.l) != nil {
				continue
			}
			ran = true
			if err := check(ctx, k, &in, x.l, x.want, x.bound(in.p.DType, parts)); err != nil {
				return fmt.Errorf("%s, number %d of calls whose sequences lie in other ways: %w", newSides(&in, x.l).p, i, err)
			}
		}
	}
	if !ran {
		return notHeld("it takes none of the calls")
	}
	return nil
}

// A turn is one of calledInTurns's calls. bound returns the largest allowed errors of the call's
// results.
type turn struct {
	batch
	bound func(t flashkit.DType, parts int) bounds
}

// turns returns two lists of calls, one for each of two problems. All calls of a list pass the same
// Problem to the kernel; their sequence lengths and layouts differ.
var turns = sync.OnceValue(func() (list [2][]turn) {
	for i := range list {
		for _, x := range []struct {
			l     layout
			q, kv int   // rows that the layout adds to QLen and KVLen
			lens  []int // lengths of queries and keys by sequence; nil for full lengths
		}{{l: bhsd}, {l: padded, q: 3, kv: 3}, {l: packed}, {l: packedQ, kv: 3}, {l: packedKV, q: 3}, {l: bhsd, lens: []int{1, 2, 3}}} {
			p := flashkit.Problem{Batch: 3, Heads: 2, KVHeads: 1, QLen: 6 + i - x.q, KVLen: 12 + i - x.kv, Dim: 16, VDim: 16, Ragged: true}
			in := Case{Name: "turns", Problem: p}.Inputs()
			if x.l == bhsd {
				in.qLens, in.kvLens = nil, nil
				for _, n := range x.lens {
					in.qLens, in.kvLens = append(in.qLens, int32(n)), append(in.kvLens, int32(n))
				}
			}
			t := turn{batch: batch{in: in, want: truth(in), l: x.l}}
			t.bound = boundsByType(in, t.want)
			list[i] = append(list[i], t)
		}
	}
	return list
})

// boundsByType returns a function that returns the bounds for a type and a number of parts. Bounds
// for parts = 0 are computed once per type.
func boundsByType(in *Inputs, want result) func(t flashkit.DType, parts int) bounds {
	limits := func(t flashkit.DType, parts int) bounds {
		x := *in
		x.p.DType = t
		return sweepBounds(&x, want, rand.New(rand.NewPCG(1, uint64(t))), parts)
	}
	once := map[flashkit.DType]func() bounds{}
	for _, t := range dtypes {
		once[t] = sync.OnceValue(func() bounds { return limits(t, 0) })
	}
	return func(t flashkit.DType, parts int) bounds {
		if parts > 0 {
			return limits(t, parts)
		}
		return once[t]()
	}
}
