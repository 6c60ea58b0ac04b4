package dispatch_test

import (
	"context"
	"fmt"
	"log"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
)

func ExampleDefault() {
	ctx := context.Background()
	d, err := dispatch.Default(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()

	// Two query rows, three keys, head dim 2. Equal scores: O is the mean of what a row sees.
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 2, KVLen: 3, Dim: 2, VDim: 2, Mask: flashkit.Causal()}
	q, k, v, o := make([]float32, 4), []float32{1, 2, 3, 4, 5, 6}, []float32{1, 10, 2, 20, 6, 60}, make([]float32, 4)
	err = d.Forward(ctx, p, &flashkit.Forward{
		Q: flashkit.F32(q, 1, 1, 2, 2), K: flashkit.F32(k, 1, 1, 3, 2),
		V: flashkit.F32(v, 1, 1, 3, 2), O: flashkit.F32(o, 1, 1, 2, 2),
	})
	fmt.Println(o, err)
	// Output: [1.5 15 3 30] <nil>
}

func ExampleNew() {
	d := dispatch.New(simd.New())
	defer d.Close()
	p, err := flashkit.ParseProblem("b1-h8-g2-n128-m512-d64-bf16-causal")
	if err != nil {
		log.Fatal(err)
	}
	only, err := d.With("simd/fwd_generic")
	if err != nil {
		log.Fatal(err)
	}
	k, err := only.Pick(p, flashkit.PassForward)
	fmt.Println(k.Name, err)
	// Output: simd/fwd_generic <nil>
}

func ExampleDispatcher_Explain() {
	d, err := dispatch.New(simd.New()).With("simd/fwd_generic")
	if err != nil {
		log.Fatal(err)
	}
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 128, KVLen: 128, Dim: 64, VDim: 64}
	verdicts, err := d.Explain(p, flashkit.PassForward)
	if err != nil {
		log.Fatal(err)
	}
	for _, v := range verdicts {
		if v.Chosen {
			fmt.Println(v.Name+":", v.Reason)
		}
	}
	// Output: simd/fwd_generic: simd/fwd_generic was asked for
}

func ExampleDispatcher_WithFailover() {
	d := dispatch.New(simd.New()).WithFailover(func(f dispatch.Failover) {
		log.Printf("%s: %s failed (%v), running %s", f.Problem, f.Failed, f.Err, f.Next)
	})
	defer d.Close()
}
