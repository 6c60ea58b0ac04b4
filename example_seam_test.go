package flashkit_test

import (
	"context"
	"fmt"
	"log"
	"slices"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// The tensors determine the problem except for its band.
func ExampleProblemOf() {
	q, k, v := make([]float32, 8*6*64), make([]float32, 2*6*64), make([]float32, 2*6*64)
	args := &flashkit.Args{Q: flashkit.F32(q, 1, 8, 6, 64), K: flashkit.F32(k, 1, 2, 6, 64), V: flashkit.F32(v, 1, 2, 6, 64)}
	fmt.Println(flashkit.ProblemOf(args, flashkit.Causal()))
	// Output: b1-h8-g2-n6-m6-d64-f32-causal
}

// Two sequences of 3 and 2 tokens packed into one tensor, as cu_seqlens has them.
func ExampleSequences() {
	x := func() flashkit.Tensor { return flashkit.F32(make([]float32, 5*8), 1, 1, 5, 8) }
	starts := []int32{0, 3, 5}
	args := &flashkit.Args{Q: x(), K: x(), V: x(), O: x(), Seqs: &flashkit.Sequences{QStarts: starts, KVStarts: starts}}
	p := flashkit.ProblemOf(args, flashkit.Causal())
	fmt.Println(p, p.Check(flashkit.PassForward, args))

	args.Seqs.KVStarts = []int32{0, 3, 6}
	fmt.Println(p.Check(flashkit.PassForward, args))
	// Output:
	// b2-h1-g1-n3-m3-d8-f32-causal-ragged <nil>
	// flashkit: Seqs.KVStarts[2] = 6: is beyond the 5 rows of K
}

// NewArgs makes tensors for everything that a pass needs, here a bias too.
func ExampleNewArgs() {
	p, err := flashkit.ParseProblem("b1-h4-g2-n3-m5-d8-f32-bias")
	if err != nil {
		log.Fatal(err)
	}
	args := flashkit.NewArgs(p, flashkit.PassBackward)
	fmt.Println(args.Q.Shape(), args.DK.Shape(), args.DBias.Shape())
	// Output: [1 4 3 8] [1 2 5 8] [1 4 3 5]
}

// Arguments lists the tensors that a call reads and writes.
func ExampleArguments() {
	p := flashkit.Problem{Batch: 1, Heads: 4, KVHeads: 2, QLen: 3, KVLen: 5, Dim: 8, VDim: 8}
	for _, a := range flashkit.Arguments() {
		if a.Role(&p, flashkit.PassForward)&flashkit.Output != 0 {
			fmt.Println(a.Name, a.DType(&p), a.Shape(&p))
		}
	}
	// Output:
	// O f32 [1 4 3 8]
	// LSE f32 [1 4 3 1]
}

// A kernel that does not name a feature is never given it.
func ExampleFeature() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 1, Dim: 1, VDim: 1, Score: flashkit.Score{Softcap: 30, Sink: true}}
	k := flashkit.Kernel{Name: "toy/fwd", Takes: flashkit.FeatureSink, Run: func(context.Context, *flashkit.Call) error { return nil }}
	fmt.Println(p.Features())
	fmt.Println(k.Fits(p.Ask(flashkit.PassForward)))
	// Output:
	// softcap,sink
	// does not support softcap
}

// A call is checked once, and can then be run by several kernels.
func ExampleCall_Set() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 2, Dim: 1, VDim: 1}
	args := flashkit.NewArgs(p, flashkit.PassForward)
	copy(args.V.Float32s(), []float32{10, 20})
	var c flashkit.Call
	if err := c.Set(p, flashkit.PassForward, args); err != nil {
		log.Fatal(err)
	}
	for _, k := range simd.New().Kernels() {
		if k.Name == "simd/fwd_generic" && k.Fits(&c) == "" {
			if err := k.Do(context.Background(), &c); err != nil {
				log.Fatal(err)
			}
		}
	}
	fmt.Println(args.O.Float32s())
	// Output: [15]
}

// The second of four shards of a sequence attends to the first shard's keys.
func ExampleBand_Shift() {
	const shard = 4
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: shard, KVLen: shard, Dim: 1, VDim: 1}
	p.Band = flashkit.Window(5, 0).Shift(shard) // row 0 of the shard is row 4 of the sequence
	for i := range shard {
		fmt.Println(p.Keys(i))
	}
	// Output:
	// 0 4
	// 0 4
	// 1 4
	// 2 4
}

// The last rows of a sequence drop the weights that they drop in a call of the whole.
func ExampleOrigin() {
	const rows, keys, first = 64, 4, 62
	drop := func(n int, o flashkit.Origin) []float32 {
		p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: n, KVLen: keys, Dim: 1, VDim: keys}
		p.Score = flashkit.Score{Dropout: .5, Origin: true}
		args := flashkit.NewArgs(p, flashkit.PassForward)
		args.Seed, args.Origin = 3, o
		for j := range keys {
			args.V.Float32s()[j*keys+j] = 2 // each key's weight has a column of its own
		}
		kernels := simd.New().Kernels()
		k := kernels[slices.IndexFunc(kernels, func(k flashkit.Kernel) bool { return k.Name == "simd/fwd_generic" })]
		if err := k.Compute(context.Background(), p, args); err != nil {
			log.Fatal(err)
		}
		return args.O.Float32s()
	}
	fmt.Println(drop(rows, flashkit.Origin{})[first*keys:])
	fmt.Println(drop(rows-first, flashkit.Origin{Row: first}))
	// Output:
	// [1 0 0 1 1 0 1 1]
	// [1 0 0 1 1 0 1 1]
}

// Rounding keeps the range of float32, and eight bits of each number.
func ExampleToBF16() {
	x := flashkit.BF16(flashkit.ToBF16([]float32{1, 2.5, 3.1415927}), 1, 1, 1, 3)
	fmt.Println(flashkit.ToF32(x))
	// Output: [1 2.5 3.140625]
}

// A mask for all heads, in which the second of three keys takes no part.
func ExampleBools() {
	x := func(rows int) flashkit.Tensor { return flashkit.F32(make([]float32, rows*8), 1, 1, rows, 8) }
	args := &flashkit.Args{Q: x(2), K: x(3), V: x(3), O: x(2), Mask: flashkit.Bools([]bool{true, false, true}, 1, 1, 1, 3)}
	p := flashkit.ProblemOf(args, flashkit.Band{})
	fmt.Println(p, p.Check(flashkit.PassForward, args))
	// Output: b1-h1-g1-n2-m3-d8-f32-mask <nil>
}

// A kernel answers for a problem without tensors.
func ExampleProblem_Ask() {
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 64, KVLen: 64, Dim: 64, VDim: 64, Score: flashkit.Score{Bias: true}}
	for _, k := range simd.New().Kernels() {
		if call := p.Ask(flashkit.PassForward); k.Name == "simd/fwd_generic" && k.Fits(call) == "" {
			fmt.Println(k.Cost(call) > 0, k.Needs(call).Host > 0)
		}
	}
	// Output: true true
}
