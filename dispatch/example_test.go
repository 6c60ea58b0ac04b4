package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
)

// The first example of README.md: one call on the fastest kernel of this machine.
func ExampleDefault() {
	ctx := context.Background()
	q, o := make([]float32, 32*256*128), make([]float32, 32*256*128)
	k, v := make([]float32, 8*256*128), make([]float32, 8*256*128)
	for i := range v {
		v[i] = float32(i % 128)
	}

	d, err := dispatch.Default(ctx) // every backend that this machine can run
	if err != nil {
		log.Fatal(err)
	}
	args := &flashkit.Args{Q: flashkit.F32(q, 1, 32, 256, 128), K: flashkit.F32(k, 1, 8, 256, 128),
		V: flashkit.F32(v, 1, 8, 256, 128), O: flashkit.F32(o, 1, 32, 256, 128)}
	if err := d.Forward(ctx, flashkit.ProblemOf(args, flashkit.Causal()), args); err != nil {
		log.Fatal(err)
	}

	d.Close()
	fmt.Println(o[:4]) // the first row sees only the first key, so it equals the first row of V
	// Output: [0 1 2 3]
}

// A program that names its backends itself depends on no environment variable.
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

// The reason for the choice, and against each other kernel.
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
	// Output: simd/fwd_generic: simd/fwd_generic was requested
}

// A program that needs the same kernels, and bits, in every run freezes its initial knowledge.
func ExampleDispatcher_Frozen() {
	d := dispatch.New(simd.New()).Frozen()
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 128, KVLen: 128, Dim: 64, VDim: 64}
	first, err := d.Pick(p, flashkit.PassForward)
	if err != nil {
		log.Fatal(err)
	}
	d.Learn(first.Name, p, time.Hour) // does nothing
	again, err := d.Pick(p, flashkit.PassForward)
	fmt.Println(again.Name == first.Name, err)
	// Output: true <nil>
}

// A benchmark compares choices with and without measurements.
func ExampleDispatcher_Blank() {
	d := dispatch.New(simd.New())
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 128, KVLen: 128, Dim: 64, VDim: 64}
	if err := d.Learn("simd/fwd_generic", p, time.Minute); err != nil {
		log.Fatal(err)
	}
	for _, x := range []*dispatch.Dispatcher{d, d.Blank()} {
		verdicts, err := x.Explain(p, flashkit.PassForward)
		if err != nil {
			log.Fatal(err)
		}
		i := slices.IndexFunc(verdicts, func(v dispatch.Verdict) bool { return v.Name == "simd/fwd_generic" })
		fmt.Println(verdicts[i].From, verdicts[i].Last)
	}
	// Output:
	// profile 1m0s
	// cost 0s
}

// A kernel with a measured time far above its prediction is not picked again.
func ExampleDispatcher_Learn() {
	d := dispatch.New(simd.New())
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 128, KVLen: 128, Dim: 64, VDim: 64}
	for range 20 {
		if err := d.Learn("simd/fwd_generic", p, time.Minute); err != nil {
			log.Fatal(err)
		}
	}
	verdicts, err := d.Explain(p, flashkit.PassForward)
	if err != nil {
		log.Fatal(err)
	}
	for _, v := range verdicts {
		if v.Name == "simd/fwd_generic" {
			fmt.Println("last:", v.Last, "predicted more than a second:", v.Cost > time.Second)
		}
	}
	// Output: last: 1m0s predicted more than a second: true
}

// A server can probe before its first request.
func ExampleDispatcher_Probe() {
	ctx := context.Background()
	d := dispatch.New(simd.New())
	defer d.Close()
	p := flashkit.Problem{Batch: 4, Heads: 8, KVHeads: 8, QLen: 2048, KVLen: 2048, Dim: 64, VDim: 64, Band: flashkit.Causal()}
	fmt.Println(d.Probe(ctx, p, flashkit.PassForward))
	// Output: <nil>
}

// A program saves its measurements for the next one.
func ExampleDispatcher_SaveProfile() {
	folder, err := os.MkdirTemp("", "flashkit")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	path := filepath.Join(folder, "profile") // or what ProfilePath returns, where All and Default look

	d := dispatch.New(simd.New())
	defer d.Close()
	if err := d.SaveProfile(path); err != nil {
		log.Fatal(err)
	}
	other := dispatch.New(simd.New())
	defer other.Close()
	fmt.Println(other.LoadProfile(path))
	// Output: <nil>
}

// A file that is not a profile changes nothing.
func ExampleDispatcher_LoadProfile() {
	d := dispatch.New(simd.New())
	defer d.Close()
	err := d.LoadProfile("example_test.go") // no profile
	fmt.Println(errors.Is(err, dispatch.ErrProfile), err)
	// Output: true profile ignored: example_test.go: not a profile of this version
}

// A service keeps its profile with its other state.
func ExampleDispatcher_ProfilePath() {
	os.Setenv("FLASHKIT_PROFILE", "/var/lib/app/flashkit.profile")
	defer os.Setenv("FLASHKIT_PROFILE", "off")
	d := dispatch.New(simd.New())
	defer d.Close()
	fmt.Println(d.ProfilePath())
	// Output: /var/lib/app/flashkit.profile <nil>
}

// A damaged profile does not stop a program, which may report it.
func ExampleDispatcher_ProfileErr() {
	os.Setenv("FLASHKIT_PROFILE", "example_test.go") // no profile
	defer os.Setenv("FLASHKIT_PROFILE", "off")
	d, err := dispatch.Open(context.Background(), "simd")
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	fmt.Println(d.ProfileErr())
	// Output: profile ignored: example_test.go: not a profile of this version
}

// A training program asks for the kernels of both passes at once.
func ExampleDispatcher_Paired() {
	d := dispatch.New(simd.New())
	defer d.Close()
	p, err := flashkit.ParseProblem("b1-h8-g8-n1-m512-d64-f32")
	if err != nil {
		log.Fatal(err)
	}
	training := d.Paired() // for the forward and the backward passes of a training step
	forward, err := training.Pick(p, flashkit.PassForward)
	if err != nil {
		log.Fatal(err)
	}
	backward, err := training.Pick(p, flashkit.PassBackward)
	fmt.Println(forward.Scores == backward.Scores, err)
	// Output: true <nil>
}

// A program logs the kernel and the duration of each call.
func ExampleDispatcher_WithObserver() {
	d, err := dispatch.New(simd.New()).With("simd/fwd_generic")
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	d = d.WithObserver(func(r dispatch.Ran) { fmt.Println(r.Pass, r.Problem, r.Kernel, r.Took > 0, r.Err) })
	p := flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 1, QLen: 64, KVLen: 64, Dim: 8, VDim: 8}
	if err := d.Forward(context.Background(), p, flashkit.NewArgs(p, flashkit.PassForward)); err != nil {
		log.Fatal(err)
	}
	// Output: forward b1-h2-g1-n64-m64-d8-f32 simd/fwd_generic true <nil>
}
