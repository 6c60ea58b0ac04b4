// Bits prints a hash of the outputs of every kernel of this machine over random problems with
// features and layouts. A change that preserves results preserves the hashes:
//
//	go run ./internal/house/bits > before
//	go run ./internal/house/bits | diff before -
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"hash"
	"math"
	"math/rand/v2"
	"os"
	"regexp"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/backends/wasm"
)

var (
	problems = flag.Int("n", 2000, "`number` of problems")
	seed     = flag.Uint64("seed", 1, "of the problems and of their tensors")
	kernels  = flag.String("kernel", "", "hash the kernels whose names match the `expression`")
	verbose  = flag.Bool("v", false, "print the hash of every problem too")
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "bits:", err)
		os.Exit(1)
	}
}

// A subject is a kernel and the hash of its outputs.
type subject struct {
	flashkit.Kernel
	sum   hash.Hash
	calls int
}

func run(ctx context.Context) error {
	list, portable, err := subjects(ctx)
	if err != nil {
		return err
	}
	for i := range *problems {
		r := rand.New(rand.NewPCG(*seed, uint64(i)))
		p := drawProblem(r)
		for p.Validate() != nil || p.FLOPs(flashkit.PassForward) > 4e7 {
			p = drawProblem(r)
		}
		if err := compare(ctx, list, portable, p, r); err != nil {
			return err
		}
	}
	for _, s := range list {
		fmt.Printf("%-24s %5d calls %x\n", s.Name, s.calls, s.sum.Sum(nil)[:16])
	}
	return nil
}

// subjects returns the kernels of all available backends, and the forward kernel in plain Go.
func subjects(ctx context.Context) (list []*subject, portable flashkit.Kernel, err error) {
	which, err := regexp.Compile(*kernels)
	if err != nil {
		return nil, portable, err
	}
	backends := []flashkit.Backend{simd.New()}
	w, err := wasm.New(ctx)
	if err != nil {
		return nil, portable, err
	}
	backends = append(backends, w)
	switch g, err := cuda.OpenContext(ctx); {
	case err == nil:
		backends = append(backends, g)
	case !errors.Is(err, flashkit.ErrUnavailable):
		return nil, portable, err
	}
	for _, b := range backends {
		for _, k := range b.Kernels() {
			if which.MatchString(k.Name) {
				list = append(list, &subject{Kernel: k, sum: sha256.New()})
			}
			if k.Name == "simd/fwd_generic" {
				portable = k
			}
		}
	}
	return list, portable, nil
}

// compare adds the outputs of every kernel that fits the problem to the kernel's hash. Backward
// kernels read the portable kernel's O and LSE.
func compare(ctx context.Context, list []*subject, portable flashkit.Kernel, p flashkit.Problem, r *rand.Rand) error {
	in := drawArgs(&p, r)
	passes := []flashkit.Pass{flashkit.PassForward}
	if p.Features()&flashkit.ForwardFeatures == 0 {
		passes = append(passes, flashkit.PassBackward)
	}
	for _, pass := range passes {
		for _, s := range list {
			args, outputs := withOutputs(&p, pass, in)
			var c flashkit.Call
			if err := c.Set(p, pass, args); err != nil {
				return fmt.Errorf("%v: %w", p, err)
			}
			if s.Fits(&c) != "" {
				continue
			}
			if err := s.Do(ctx, &c); err != nil {
				return fmt.Errorf("%s: %v: %w", s.Name, p, err)
			}
			one := sha256.New()
			for _, t := range outputs {
				write(one, t)
			}
			s.sum.Write(one.Sum(nil))
			s.calls++
			if *verbose {
				fmt.Printf("%s %v %x\n", s.Name, p, one.Sum(nil)[:8])
			}
		}
		if pass == flashkit.PassForward && len(passes) > 1 {
			args, _ := withOutputs(&p, pass, in)
			if err := portable.Compute(ctx, p, args); err != nil {
				return err
			}
			in.O, in.LSE = args.O, args.LSE
		}
	}
	return nil
}

// withOutputs returns a copy of the arguments with new outputs of the pass, which are filled with
// NaN. It also returns the list of these outputs.
func withOutputs(p *flashkit.Problem, pass flashkit.Pass, in flashkit.Args) (*flashkit.Args, []flashkit.Tensor) {
	args, outputs := in, []flashkit.Tensor(nil)
	for _, a := range flashkit.Arguments() {
		role := a.Role(p, pass)
		if role&flashkit.Output == 0 {
			continue
		}
		t := like(a.DType(p), shapeOf(p, &in, &a), in.Q)
		if a.Name == "DBias" {
			t = like(in.Bias.DType(), in.Bias.Shape(), flashkit.Tensor{})
		}
		fill(t, func() float32 { return float32(math.NaN()) })
		if role&flashkit.Input != 0 { // Carry
			t = clone(*a.Of(&args))
		}
		*a.Of(&args) = t
		outputs = append(outputs, t)
	}
	return &args, outputs
}

func write(h hash.Hash, t flashkit.Tensor) {
	for _, x := range t.Float32s() {
		b := math.Float32bits(x)
		h.Write([]byte{byte(b), byte(b >> 8), byte(b >> 16), byte(b >> 24)})
	}
	for _, x := range t.Uint16s() {
		h.Write([]byte{byte(x), byte(x >> 8)})
	}
}
