// Instructions calls a kernel several times, so that tools/arm64/counts.py can count its
// instructions:
//
//	instructions simd/fwd_neon b1-h1-g1-n1024-m1024-d64-f32-causal 2
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "instructions:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("want a kernel, a problem and a number of calls, not %d arguments", len(args))
	}
	p, err := flashkit.ParseProblem(args[1])
	if err != nil {
		return err
	}
	calls, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	debug.SetGCPercent(-1) // no garbage collection, whose instructions would be counted
	runtime.GOMAXPROCS(1)
	f := arguments(p)
	for _, k := range simd.New().Kernels() {
		if k.Name != args[0] {
			continue
		}
		for range calls {
			if err := k.Compute(context.Background(), p, f); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("no kernel %s", args[0])
}

func arguments(p flashkit.Problem) *flashkit.Args {
	state := uint32(1)
	tensor := func(s [4]int, t flashkit.DType) flashkit.Tensor {
		x := make([]float32, s[0]*s[1]*s[2]*s[3])
		for i := range x {
			state = state*1664525 + 1013904223
			x[i] = float32(state>>8)/(1<<23) - 1
		}
		switch t {
		case flashkit.Float16:
			return flashkit.F16(flashkit.ToF16(x), s[0], s[1], s[2], s[3])
		case flashkit.BFloat16:
			return flashkit.BF16(flashkit.ToBF16(x), s[0], s[1], s[2], s[3])
		}
		return flashkit.F32(x, s[0], s[1], s[2], s[3])
	}
	kv := p.KVType()
	return &flashkit.Args{
		Q: tensor(p.QShape(), p.DType), K: tensor(p.KShape(), kv), V: tensor(p.VShape(), kv),
		O: tensor(p.OShape(), p.DType), LSE: tensor(p.LSEShape(), flashkit.Float32),
		DO: tensor(p.OShape(), p.DType), DQ: tensor(p.QShape(), p.DType), DK: tensor(p.KShape(), p.DType), DV: tensor(p.VShape(), p.DType),
	}
}
