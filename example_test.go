package flashkit_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// Two query rows attend to two keys through one kernel of the CPU backend.
// Package dispatch chooses the kernel for you.
func Example() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 2, KVLen: 2, Dim: 2, VDim: 1, Band: flashkit.Causal()}
	o := make([]float32, 2)
	args := &flashkit.Args{
		Q: flashkit.F32([]float32{1, 0, 0, 1}, 1, 1, 2, 2),
		K: flashkit.F32([]float32{5, 3, 1, 3}, 1, 1, 2, 2),
		V: flashkit.F32([]float32{10, 20}, 1, 1, 2, 1),
		O: flashkit.F32(o, 1, 1, 2, 1),
	}
	for _, kernel := range simd.New().Kernels() {
		if kernel.Name == "simd/fwd_generic" {
			if err := kernel.Compute(context.Background(), p, args); err != nil {
				log.Fatal(err)
			}
		}
	}
	fmt.Println(o) // row 0 sees the first key only; row 1 weighs both the same
	// Output: [10 15]
}

// A command takes the problem by its name. Invalid ones are refused.
func ExampleParseProblem() {
	p, err := flashkit.ParseProblem("b1-h8-g2-n128-m512-d64-bf16-causal")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.Heads, p.KVHeads, p.DType, p.QShape())

	_, err = flashkit.ParseProblem("b1-h8-g3-n128-m512-d64-bf16-causal")
	fmt.Println(err)
	// Output:
	// 8 2 bf16 [1 8 128 64]
	// flashkit: KVHeads = 3: must divide Heads = 8
}

// The work of attention is proportional to the pairs that the band lets through.
func ExampleProblem_Area() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1000, KVLen: 1000, Dim: 64, VDim: 64}
	fmt.Println(p.Area())
	p.Band = flashkit.Causal()
	fmt.Println(p.Area())
	p.Band = flashkit.Window(9, 0)
	fmt.Println(p.Area())
	// Output:
	// 1000000
	// 500500
	// 9955
}

// printMask prints a line for each row, with an x for each key that it sees.
func printMask(p flashkit.Problem) {
	for i := range p.QLen {
		lo, hi := p.Keys(i)
		line := []byte("......"[:p.KVLen])
		for j := lo; j < hi; j++ {
			line[j] = 'x'
		}
		fmt.Println(string(line))
	}
}

// Each row sees two keys before the diagonal and one after it.
func ExampleWindow() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 4, KVLen: 6, Dim: 64, VDim: 64}
	p.Band = flashkit.Window(2, 1) // the last row meets the last key
	printMask(p)
	// Output:
	// xxxx..
	// .xxxx.
	// ..xxxx
	// ...xxx
}

// Libraries with top-left alignment hide later keys from the first row on.
func ExampleBand_TopLeft() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 4, KVLen: 6, Dim: 64, VDim: 64}
	p.Band = flashkit.Causal().TopLeft() // the first row meets the first key
	printMask(p)
	// Output:
	// x.....
	// xx....
	// xxx...
	// xxxx..
}

// Memory in the order [batch, rows, heads, row elements] needs no copy.
func ExampleTensor_AsBSHD() {
	memory := []float32{
		1, 2, 10, 20, // row 0 of heads 0 and 1
		3, 4, 30, 40, // row 1 of heads 0 and 1
	}
	const batch, heads, rows, dim = 1, 2, 2, 2
	q := flashkit.F32(memory, batch, heads, rows, dim).AsBSHD()
	for h := range heads {
		for r := range rows {
			fmt.Println("head", h, "row", r, q.Float32s()[q.Offset(0, h, r):][:dim])
		}
	}
	// Output:
	// head 0 row 0 [1 2]
	// head 0 row 1 [3 4]
	// head 1 row 0 [10 20]
	// head 1 row 1 [30 40]
}

// A kernel gives the reason for refusing a problem. Another kernel may support it.
func ExampleUnsupportedError() {
	kernel := flashkit.Kernel{
		Name: "toy/fwd_even",
		Refuses: func(c *flashkit.Call) string {
			if c.Dim%2 != 0 {
				return "Dim must be even"
			}
			return ""
		},
		Run: func(context.Context, *flashkit.Call) error { return nil },
	}
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 1, Dim: 3, VDim: 3}
	x := flashkit.F32([]float32{1, 2, 3}, 1, 1, 1, 3)
	o := flashkit.F32(make([]float32, 3), 1, 1, 1, 3)

	err := kernel.Compute(context.Background(), p, &flashkit.Args{Q: x, K: x, V: x, O: o})
	fmt.Println(err)
	fmt.Println(errors.Is(err, errors.ErrUnsupported))
	// Output:
	// toy/fwd_even: does not support b1-h1-g1-n1-m1-d3-f32: Dim must be even
	// true
}

// A training step runs the forward pass for O and LSE, then the backward pass
// on its results.
func ExampleKernel_Compute() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 2, Dim: 1, VDim: 1}
	row := func(x float32) flashkit.Tensor { return flashkit.F32([]float32{x}, 1, 1, 1, 1) }
	keys := func(x ...float32) flashkit.Tensor { return flashkit.F32(x, 1, 1, 2, 1) }
	fwd := flashkit.Args{Q: row(0), K: keys(3, 4), V: keys(10, 20), O: row(0), LSE: row(0)}
	bwd := flashkit.Args{Q: fwd.Q, K: fwd.K, V: fwd.V, O: fwd.O, LSE: fwd.LSE, DO: row(1),
		DQ: row(0), DK: keys(0, 0), DV: keys(0, 0)}
	for _, k := range simd.New().Kernels() {
		var err error
		switch k.Name {
		case "simd/fwd_generic":
			err = k.Compute(context.Background(), p, &fwd)
		case "simd/bwd_generic":
			err = k.Compute(context.Background(), p, &bwd)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Printf("%.4f\n", fwd.LSE.Float32s()) // ln 2
	fmt.Println(bwd.DQ.Float32s(), bwd.DK.Float32s(), bwd.DV.Float32s())
	// Output:
	// [0.6931]
	// [2.5] [0 0] [0.5 0.5]
}

// Any type over uint16 can hold bfloat16 or binary16 bits.
func ExampleBF16() {
	type bfloat16 uint16
	one := flashkit.BF16([]bfloat16{0x3f80}, 1, 1, 1, 1)
	fmt.Println(one.DType(), one.Shape())
	// Output: bf16 [1 1 1 1]
}

// Memory for results in a type that is known when the program runs.
func ExampleZeros() {
	o := flashkit.Zeros(flashkit.BFloat16, 1, 8, 512, 64)
	fmt.Println(o.Shape(), o.DType(), o.Len())
	// Output: [1 8 512 64] bf16 262144
}

// Q, K and V packed row by row, [rows, 3, heads, dim], are three views of one
// slice.
func ExampleTensor_WithStrides() {
	const rows, heads, dim = 5, 2, 4
	qkv := make([]float32, rows*3*heads*dim)
	view := func(i int) flashkit.Tensor {
		return flashkit.F32(qkv[i*heads*dim:], 1, heads, rows, dim).WithStrides(0, dim, 3*heads*dim)
	}
	q, k, v := view(0), view(1), view(2)
	p := flashkit.Problem{Batch: 1, Heads: heads, KVHeads: heads, QLen: rows, KVLen: rows, Dim: dim, VDim: dim}
	o := flashkit.F32(make([]float32, rows*heads*dim), 1, heads, rows, dim)
	fmt.Println(p.Check(flashkit.PassForward, &flashkit.Args{Q: q, K: k, V: v, O: o}))
	// Output: <nil>
}
