package flashkit_test

import (
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A name identifies the problem in benchmarks, subtests and log lines, and ParseProblem reads it back.
func ExampleProblem_String() {
	p := flashkit.Problem{Batch: 1, Heads: 32, KVHeads: 8, QLen: 1, KVLen: 4096, Dim: 128, VDim: 128, DType: flashkit.BFloat16}
	p.Band = flashkit.Window(1023, 0)
	p.Score.Softcap = 30
	again, err := flashkit.ParseProblem(p.String())
	fmt.Println(p, again == p, err)
	// Output: b1-h32-g8-n1-m4096-d128-bf16-window1023.0-softcap30 true <nil>
}

// A server rejects a request before it allocates the tensors. The error names the field.
func ExampleProblem_Validate() {
	p := flashkit.Problem{Batch: 1, Heads: 32, KVHeads: 5, QLen: 1, KVLen: 4096, Dim: 128, VDim: 128}
	var wrong *flashkit.ProblemError
	if errors.As(p.Validate(), &wrong) {
		fmt.Println(wrong.Field, wrong.Value, wrong.Reason)
	}
	// Output: KVHeads 5 must divide Heads = 32
}

// A number read from a file may be neither pass.
func ExamplePass_Validate() {
	fmt.Println(flashkit.PassBackward.Validate())
	fmt.Println(flashkit.Pass(2).Validate())
	// Output:
	// <nil>
	// flashkit: Pass = 2: must be 0, forward, or 1, backward
}

// The rate of a measured call. A causal band halves the work.
func ExampleProblem_FLOPs() {
	p := flashkit.Problem{Batch: 2, Heads: 32, KVHeads: 8, QLen: 4096, KVLen: 4096, Dim: 128, VDim: 128}
	p.Band = flashkit.Causal()
	took := 500 * time.Millisecond
	fmt.Printf("forward %.2f TFLOP/s\n", p.FLOPs(flashkit.PassForward)/took.Seconds()/1e12)
	fmt.Println("backward over forward", p.FLOPs(flashkit.PassBackward)/p.FLOPs(flashkit.PassForward))
	// Output:
	// forward 0.55 TFLOP/s
	// backward over forward 2.5
}

// Memory bounds decoding: the time to read the KV cache at 50 GB/s.
func ExampleProblem_Bytes() {
	p := flashkit.Problem{Batch: 1, Heads: 32, KVHeads: 8, QLen: 1, KVLen: 32768, Dim: 128, VDim: 128, DType: flashkit.BFloat16}
	bytes := p.Bytes(flashkit.PassForward)
	fmt.Printf("%.0f MB, at least %.1f ms\n", bytes/1e6, bytes/50e9*1e3)
	// Output: 134 MB, at least 2.7 ms
}

// The problem's features decide whether a backward pass exists.
func ExampleProblem_Features() {
	p, err := flashkit.ParseProblem("b1-h8-g2-n1-m512-d64-f32-kvbf16-alibi-ragged-page16")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.Features())
	fmt.Println("no backward pass:", p.Features()&flashkit.ForwardFeatures)
	// Output:
	// alibi,ragged,page,mixed
	// no backward pass: page,mixed
}

// A sweep tests features alone and in pairs.
func ExampleFeature_Count() {
	for _, f := range []flashkit.Feature{flashkit.FeatureSink, flashkit.FeatureSink | flashkit.FeatureSoftcap, flashkit.AllFeatures} {
		if f.Count() <= 2 {
			fmt.Println(f)
		}
	}
	// Output:
	// sink
	// softcap,sink
}

// A KV cache in bf16 under float32 queries takes half the memory.
func ExampleProblem_KVType() {
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 2, QLen: 1, KVLen: 4096, Dim: 64, VDim: 64}
	fmt.Println(p.KVType())
	p.KVDType = flashkit.BFloat16
	s := p.KShape()
	cache := flashkit.Zeros(p.KVType(), s[0], s[1], s[2], s[3])
	fmt.Println(p.KVType(), cache.Len()*p.KVType().Size(), "bytes")
	// Output:
	// f32
	// bf16 1048576 bytes
}

// The bytes of a KV cache of 32 layers.
func ExampleDType_Size() {
	const layers, heads, keys, dim = 32, 8, 4096, 128
	fmt.Println(2*layers*heads*keys*dim*flashkit.BFloat16.Size()>>20, "MB")
	fmt.Println(2*layers*heads*keys*dim*flashkit.Float32.Size()>>20, "MB")
	// Output:
	// 512 MB
	// 1024 MB
}

// The default scale, and a scale of the caller.
func ExampleProblem_SoftmaxScale() {
	p := flashkit.Problem{Dim: 64}
	fmt.Println(p.SoftmaxScale())
	p.Scale = 1
	fmt.Println(p.SoftmaxScale())
	// Output:
	// 0.125
	// 1
}

// Memory for the queries of a problem.
func ExampleProblem_QShape() {
	p := flashkit.Problem{Batch: 2, Heads: 8, KVHeads: 2, QLen: 3, KVLen: 512, Dim: 64, VDim: 32}
	s := p.QShape()
	q := flashkit.Zeros(p.DType, s[0], s[1], s[2], s[3])
	fmt.Println(q.Shape(), q.Len())
	// Output: [2 8 3 64] 3072
}

// The keys of grouped-query attention have fewer heads than the queries.
func ExampleProblem_KShape() {
	p := flashkit.Problem{Batch: 2, Heads: 8, KVHeads: 2, QLen: 3, KVLen: 512, Dim: 64, VDim: 32}
	fmt.Println(p.KShape())
	// Output: [2 2 512 64]
}

// Values may have another head dim than keys.
func ExampleProblem_VShape() {
	p := flashkit.Problem{Batch: 2, Heads: 8, KVHeads: 2, QLen: 3, KVLen: 512, Dim: 64, VDim: 32}
	fmt.Println(p.VShape())
	// Output: [2 2 512 32]
}

// Outputs have the heads and rows of the queries and the head dim of the values.
func ExampleProblem_OShape() {
	p := flashkit.Problem{Batch: 2, Heads: 8, KVHeads: 2, QLen: 3, KVLen: 512, Dim: 64, VDim: 32}
	fmt.Println(p.OShape())
	// Output: [2 8 3 32]
}

// A training step keeps the LSE, always in float32, for its backward pass.
func ExampleProblem_LSEShape() {
	p := flashkit.Problem{Batch: 2, Heads: 8, KVHeads: 2, QLen: 3, KVLen: 512, Dim: 64, VDim: 32, DType: flashkit.BFloat16}
	s := p.LSEShape()
	lse := flashkit.Zeros(flashkit.Float32, s[0], s[1], s[2], s[3])
	fmt.Println(lse.Shape(), lse.DType())
	// Output: [2 8 3 1] f32
}

// Args that do not fit are found before anything runs.
func ExampleProblem_Check() {
	x := func(rows, dim int) flashkit.Tensor { return flashkit.F32(make([]float32, rows*dim), 1, 1, rows, dim) }
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 2, KVLen: 3, Dim: 8, VDim: 8}
	args := &flashkit.Args{Q: x(2, 8), K: x(3, 8), V: x(3, 4)}
	fmt.Println(p.Check(flashkit.PassForward, args))
	args.V = x(3, 8)
	fmt.Println(p.Check(flashkit.PassForward, args))
	args.O = x(2, 8)
	fmt.Println(p.Check(flashkit.PassForward, args))
	// Output:
	// flashkit: V.shape = [1 1 3 4]: must be [1 1 3 8]
	// flashkit: O = none: the tensor is missing
	// <nil>
}

// A table of all options of a problem, for a command's help.
func ExampleParameters() {
	for _, x := range flashkit.Parameters() {
		if x.Scope == flashkit.ScopePair {
			fmt.Println(x.Name, x.Field, "-", x.About)
		}
	}
	// Output:
	// bias Score.Bias - add a bias to scores
	// mask Score.Mask - hide pairs of a row and a key
}

// A flag's text sets the parameter of its name.
func ExampleParameter_Of() {
	p, err := flashkit.ParseProblem("b1-h8-g2-n1-m512-d64-f32")
	if err != nil {
		log.Fatal(err)
	}
	for _, x := range flashkit.Parameters() {
		if to, ok := x.Of(&p).(*float32); ok && x.Name == "softcap" {
			*to = 50
		}
	}
	fmt.Println(p)
	// Output: b1-h8-g2-n1-m512-d64-f32-softcap50
}
