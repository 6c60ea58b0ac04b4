package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
)

// A program for many machines takes what each has. FLASHKIT_BACKEND has no effect.
func ExampleAll() {
	d := dispatch.All(context.Background())
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 64, KVLen: 64, Dim: 64, VDim: 64}
	_, err := d.Pick(p, flashkit.PassForward)
	fmt.Println(err)
	// Output: <nil>
}

// A program that must not touch the GPU opens the CPU backend alone.
func ExampleOpen() {
	ctx := context.Background()
	d, err := dispatch.Open(ctx, "simd")
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	_, err = d.With("cuda")
	fmt.Println(err)
	_, err = dispatch.Open(ctx, "tpu")
	fmt.Println(err)
	// Output:
	// flashkit: backend = cuda: was not opened: the Dispatcher was opened for simd
	// flashkit: backend = tpu: must be auto, one of simd, wasm, cuda, or a kernel of them, such as simd/fwd_generic
}

// A command's flag restricts the kernels. A mistake is an error, never another kernel.
func ExampleDispatcher_With() {
	d := dispatch.New(simd.New())
	defer d.Close()
	_, err := d.With("simd/fwd_generic")
	fmt.Println(err)
	_, err = d.With("smid")
	fmt.Println(err)
	// Output:
	// <nil>
	// flashkit: backend = smid: must be auto, one of simd, or a kernel of them, such as simd/fwd_generic
}

// The values of a command's flag, for its completion.
func ExampleDispatcher_Choices() {
	d := dispatch.New(simd.New())
	defer d.Close()
	names := d.Choices()
	fmt.Println(names[:2], slices.Contains(names, "simd/bwd_generic"))
	// Output: [auto simd] true
}

// The backends that this machine has.
func ExampleDispatcher_Backends() {
	d := dispatch.New(simd.New())
	defer d.Close()
	for _, b := range d.Backends() {
		fmt.Println(b.Name())
	}
	// Output: simd
}

// A program says why it has no GPU before it starts a long computation without one.
func ExampleDispatcher_Missing() {
	d := dispatch.All(context.Background())
	defer d.Close()
	for _, m := range d.Missing() {
		if m.Backend == "simd" || !errors.Is(m.Err, flashkit.ErrUnavailable) {
			fmt.Println(m.Backend, m.Err) // never: the CPU backend needs nothing
		}
	}
	// Output:
}

// A restricted Dispatcher has fewer kernels.
func ExampleDispatcher_Kernels() {
	d, err := dispatch.New(simd.New()).With("simd/fwd_generic")
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	for _, k := range d.Kernels() {
		fmt.Println(k.Name, k.Pass)
	}
	// Output:
	// simd/fwd_generic forward
	// simd/bwd_generic backward
}

// A program closes its Dispatcher once, after all calls. Copies share the backends.
func ExampleDispatcher_Close() {
	d := dispatch.New(simd.New())
	training := d.Paired()
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 8, KVLen: 8, Dim: 4, VDim: 4}
	err := training.Forward(context.Background(), p, flashkit.NewArgs(p, flashkit.PassForward))
	fmt.Println(err, d.Close())
	// Output: <nil> <nil>
}

// The predicted time and the workspace of a call, before its tensors exist.
func ExampleDispatcher_Pick() {
	d := dispatch.New(simd.New())
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 4096, KVLen: 4096, Dim: 64, VDim: 64}
	k, err := d.Pick(p, flashkit.PassForward)
	if err != nil {
		log.Fatal(err)
	}
	call := p.Ask(flashkit.PassForward)
	fmt.Println(k.Pass, k.Cost(call) > 0, k.Needs(call).Host < 1e9)
	// Output: forward true true
}

// The kernel of a training step's forward pass sums scores in the backward kernel's order.
func ExampleDispatcher_PickWithLSE() {
	d := dispatch.New(simd.New())
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 1, KVLen: 512, Dim: 64, VDim: 64}
	forward, err := d.PickWithLSE(p)
	if err != nil {
		log.Fatal(err)
	}
	backward, err := d.Pick(p, flashkit.PassBackward)
	fmt.Println(forward.Scores == backward.Scores, err)
	// Output: true <nil>
}

// A server that merges results by LSE does not train, and keeps the fast kernels for few rows.
func ExampleDispatcher_Unpaired() {
	d := dispatch.New(simd.New()).Unpaired()
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 1, KVLen: 512, Dim: 64, VDim: 64}
	with, err := d.PickWithLSE(p)
	if err != nil {
		log.Fatal(err)
	}
	without, err := d.Pick(p, flashkit.PassForward)
	fmt.Println(with.Name == without.Name, err)
	// Output: true <nil>
}

// Two keys with equal scores: the output is the mean of their values.
func ExampleDispatcher_Forward() {
	d := dispatch.New(simd.New())
	defer d.Close()
	o := make([]float32, 2)
	args := &flashkit.Args{
		Q: flashkit.F32([]float32{1, 0}, 1, 1, 1, 2),
		K: flashkit.F32([]float32{3, 5, 3, 7}, 1, 1, 2, 2),
		V: flashkit.F32([]float32{10, 20, 30, 40}, 1, 1, 2, 2),
		O: flashkit.F32(o, 1, 1, 1, 2),
	}
	if err := d.Forward(context.Background(), flashkit.ProblemOf(args, flashkit.Causal()), args); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.3f\n", o)
	// Output: [20.000 30.000]
}

// The gradients of the sum of the outputs. The backward pass reads the O and LSE of the forward pass.
func ExampleDispatcher_Backward() {
	ctx, d := context.Background(), dispatch.New(simd.New())
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 2, Dim: 1, VDim: 1}
	args := flashkit.NewArgs(p, flashkit.PassBackward)
	copy(args.K.Float32s(), []float32{3, 4})
	copy(args.V.Float32s(), []float32{10, 20})
	args.DO.Float32s()[0] = 1
	if err := d.Forward(ctx, p, args); err != nil {
		log.Fatal(err)
	}
	if err := d.Backward(ctx, p, args); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.3f %.3f\n", args.DQ.Float32s(), args.DV.Float32s())
	// Output: [2.500] [0.500 0.500]
}
