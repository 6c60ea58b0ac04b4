package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
)

// A lost is a backend whose device has failed.
type lost struct{}

func (lost) Name() string { return "lost" }
func (lost) Close() error { return nil }
func (lost) Kernels() []flashkit.Kernel {
	return []flashkit.Kernel{{
		Name: "lost/fwd",
		Cost: func(*flashkit.Call) time.Duration { return 1 }, // so it is chosen
		Run:  func(context.Context, *flashkit.Call) error { return errors.New("the device is gone") },
	}}
}

// A server continues on the CPU when its device fails, and reports it.
func ExampleDispatcher_WithFailover() {
	d := dispatch.New(lost{}, simd.New()).WithFailover(func(f dispatch.Failover) {
		fmt.Println(f.Err)
	})
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 1, Dim: 2, VDim: 2}
	args := flashkit.NewArgs(p, flashkit.PassForward)
	args.LSE = flashkit.Tensor{} // a forward pass alone
	copy(args.V.Float32s(), []float32{3, 4})
	if err := d.Forward(context.Background(), p, args); err != nil {
		log.Fatal(err)
	}
	fmt.Println(args.O.Float32s())
	// Output:
	// lost/fwd: the device is gone
	// [3 4]
}
