package flashkit_test

import (
	"context"
	"fmt"
	"log"

	"github.com/flashkit-go/flashkit"
)

// An argument's role tells what a pass does with it: 0 if it does not use it.
func ExampleArgument_Role() {
	p := flashkit.Problem{Batch: 1, Heads: 4, KVHeads: 2, QLen: 3, KVLen: 5, Dim: 8, VDim: 8}
	for _, a := range flashkit.Arguments() {
		if a.Role(&p, flashkit.PassBackward)&flashkit.Input != 0 {
			fmt.Print(a.Name, " ")
		}
	}
	// Output: Q K V O LSE DO DLSE
}

// A program that loads arguments from a file knows their shapes.
func ExampleArgument_Shape() {
	p := flashkit.Problem{Batch: 1, Heads: 4, KVHeads: 2, QLen: 3, KVLen: 5, Dim: 8, VDim: 8, Score: flashkit.Score{Bias: true}}
	for _, a := range flashkit.Arguments() {
		if a.Name == "K" || a.Name == "Bias" {
			fmt.Println(a.Name, a.Shape(&p))
		}
	}
	// Output:
	// K [1 2 5 8]
	// Bias [1 4 3 5]
}

// LSE is float32 in a problem of any type.
func ExampleArgument_DType() {
	p := flashkit.Problem{Batch: 1, Heads: 4, KVHeads: 2, QLen: 3, KVLen: 5, Dim: 8, VDim: 8, DType: flashkit.BFloat16}
	for _, a := range flashkit.Arguments() {
		if a.Name == "O" || a.Name == "LSE" {
			fmt.Println(a.Name, a.DType(&p))
		}
	}
	// Output:
	// O bf16
	// LSE f32
}

// The bytes of the tensors of a call.
func ExampleArgument_Of() {
	p := flashkit.Problem{Batch: 1, Heads: 4, KVHeads: 2, QLen: 3, KVLen: 5, Dim: 8, VDim: 8}
	args, bytes := flashkit.NewArgs(p, flashkit.PassForward), 0
	for _, a := range flashkit.Arguments() {
		t := a.Of(args)
		bytes += t.Len() * t.DType().Size()
	}
	fmt.Println(bytes, p.Bytes(flashkit.PassForward))
	// Output: 1456 1456
}

// packed returns the call of two packed sequences: 3 rows and keys, 2 rows with 6 keys.
func packed() *flashkit.Call {
	x := func(rows int) flashkit.Tensor { return flashkit.F32(make([]float32, rows*8), 1, 1, rows, 8) }
	args := &flashkit.Args{Q: x(5), K: x(9), V: x(9), O: x(5), Seqs: &flashkit.Sequences{QStarts: []int32{0, 3, 5}, KVStarts: []int32{0, 3, 9}}}
	c := new(flashkit.Call)
	if err := c.Set(flashkit.ProblemOf(args, flashkit.Causal()), flashkit.PassForward, args); err != nil {
		log.Fatal(err)
	}
	return c
}

// Where a kernel finds the rows, the keys and the band of each sequence.
func ExampleCall_Seq() {
	c := packed() // two sequences: 3 rows and keys, 2 rows with 6 keys
	for b := range c.Batch {
		s := c.Seq(b)
		fmt.Println("rows", s.Q0, s.N, "keys", s.K0, s.M)
	}
	// Output:
	// rows 0 3 keys 0 3
	// rows 3 2 keys 3 6
}

// The keys of a row, counted from the first key of the sequence.
func ExampleSeq_Keys() {
	c := packed() // two sequences: 3 rows and keys, 2 rows with 6 keys
	s := c.Seq(1)
	fmt.Println(s.Keys(0))
	// Output: 0 5
}

// The rows of a key, counted from the first row of the sequence.
func ExampleSeq_Queries() {
	c := packed() // two sequences: 3 rows and keys, 2 rows with 6 keys
	s := c.Seq(1)
	fmt.Println(s.Queries(5))
	// Output: 1 2
}

// A scheduler starts the sequence with the most work first.
func ExampleSeq_Area() {
	c := packed() // two sequences: 3 rows and keys, 2 rows with 6 keys
	for b := range c.Batch {
		s := c.Seq(b)
		fmt.Println(b, s.Area())
	}
	// Output:
	// 0 6
	// 1 11
}

// The work of a call of unequal sequences, and the work that padding would add.
func ExampleCall_Area() {
	c := packed() // two sequences: 3 rows and keys, 2 rows with 6 keys
	fmt.Println(c.Area(), int64(c.Batch)*c.Problem.Area())
	// Output: 17 30
}

// The rate of a measured call counts the actual lengths of its sequences.
func ExampleCall_FLOPs() {
	c := packed() // two sequences: 3 rows and keys, 2 rows with 6 keys
	fmt.Println(c.FLOPs(), c.Problem.FLOPs(c.Pass))
	// Output: 544 960
}

// A loop over the keys of a sequence goes from one page to the next.
func ExampleCall_KeyRun() {
	p, err := flashkit.ParseProblem("b1-h1-g1-n1-m7-d8-f32-ragged-page4")
	if err != nil {
		log.Fatal(err)
	}
	args := flashkit.NewArgs(p, flashkit.PassForward)
	args.Seqs.Pages = []int32{1, 0}
	var c flashkit.Call
	if err := c.Set(p, flashkit.PassForward, args); err != nil {
		log.Fatal(err)
	}
	for j := 0; j < c.KVLen; {
		offset, keys := c.KeyRun(&args.K, 0, 0, j)
		fmt.Println("key", j, "at", offset, "and", keys-1, "more")
		j += keys
	}
	// Output:
	// key 0 at 32 and 3 more
	// key 4 at 0 and 2 more
}

// echo is a kernel that copies V to O, which is attention to one key.
var echo = flashkit.Kernel{
	Name: "toy/fwd_echo",
	Refuses: func(c *flashkit.Call) string {
		if c.QLen != 1 || c.KVLen != 1 {
			return "supports one row and one key"
		}
		return ""
	},
	Run: func(_ context.Context, c *flashkit.Call) error {
		copy(c.Args.O.Float32s(), c.Args.V.Float32s())
		return nil
	},
}

// The reason for refusing a problem.
func ExampleKernel_Fits() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 7, Dim: 2, VDim: 2}
	fmt.Println(echo.Fits(p.Ask(flashkit.PassForward)))
	fmt.Println(echo.Fits(p.Ask(flashkit.PassBackward)))
	// Output:
	// supports one row and one key
	// computes the forward pass only
}

// A call that is checked once runs many times.
func ExampleKernel_Do() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 1, Dim: 2, VDim: 2}
	args := flashkit.NewArgs(p, flashkit.PassForward)
	var c flashkit.Call
	if err := c.Set(p, flashkit.PassForward, args); err != nil {
		log.Fatal(err)
	}
	for step := range 3 {
		args.V.Float32s()[0] = float32(step)
		if err := echo.Do(context.Background(), &c); err != nil {
			log.Fatal(err)
		}
		fmt.Println(args.O.Float32s())
	}
	// Output:
	// [0 0]
	// [1 0]
	// [2 0]
}
