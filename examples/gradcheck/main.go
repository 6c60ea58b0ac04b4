// Gradcheck compares the gradients of a problem with finite differences:
//
//	go run ./examples/gradcheck b1-h4-g2-n9-m12-d16-f32-causal
//
// The loss is sum(O*dO) + sum(LSE*dLSE). The random tensors dO and dLSE are also inputs of the
// backward pass. The check moves some elements of Q, K and V up and down by a step. For each of
// these elements, it compares the slope of the loss with the element of the gradient.
package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// Parameters of the check. O and LSE are float32: with a much smaller step, their rounding would
// hide the change of the loss.
const (
	step     = 1.0 / 64
	bound    = 0.02 // largest allowed difference, relative to the largest element of the gradient
	elements = 24   // number of checked elements per tensor
)

func main() {
	name := "b1-h4-g2-n9-m12-d16-f32-causal"
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	if err := run(context.Background(), os.Stdout, name); err != nil {
		fmt.Fprintln(os.Stderr, "gradcheck:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, w io.Writer, name string) error {
	p, err := flashkit.ParseProblem(name)
	if err != nil {
		return err
	}
	d, err := dispatch.Default(ctx)
	if err != nil {
		return err
	}
	defer d.Close()
	return check(ctx, w, d, p)
}

// An attention computes both passes. *dispatch.Dispatcher implements it.
type attention interface {
	Forward(context.Context, flashkit.Problem, *flashkit.Args) error
	Backward(context.Context, flashkit.Problem, *flashkit.Args) error
}

// check compares the gradients of Q, K and V with the slopes of the loss. It prints a line for each
// gradient, or returns an error if a gradient differs too much.
func check(ctx context.Context, w io.Writer, a attention, p flashkit.Problem) error {
	if p.DType != flashkit.Float32 {
		return fmt.Errorf("%s: finite differences drown in the rounding of 16 bits: use f32", p)
	}
	r := rand.New(rand.NewPCG(1, 2))
	random := func(shape [4]int) flashkit.Tensor {
		x := zeros(shape)
		for i := range x.Float32s() {
			x.Float32s()[i] = float32(r.NormFloat64())
		}
		return x
	}
	f := &flashkit.Args{Q: random(p.QShape()), K: random(p.KShape()), V: random(p.VShape()), O: zeros(p.OShape()), LSE: zeros(p.LSEShape())}
	b := &flashkit.Args{Q: f.Q, K: f.K, V: f.V, O: f.O, LSE: f.LSE, DO: random(p.OShape()), DLSE: random(p.LSEShape()),
		DQ: zeros(p.QShape()), DK: zeros(p.KShape()), DV: zeros(p.VShape())}
	if err := a.Forward(ctx, p, f); err != nil {
		return err
	}
	if err := a.Backward(ctx, p, b); err != nil {
		return err
	}
	fmt.Fprintln(w, p)
	for _, t := range []struct {
		name        string
		x, gradient []float32
	}{{"dq", f.Q.Float32s(), b.DQ.Float32s()}, {"dk", f.K.Float32s(), b.DK.Float32s()}, {"dv", f.V.Float32s(), b.DV.Float32s()}} {
		n := min(elements, len(t.x))
		worst, err := compare(r, n, t.x, t.gradient, func() (float64, error) {
			err := a.Forward(ctx, p, f)
			return dot(f.O, b.DO) + dot(f.LSE, b.DLSE), err
		})
		if err != nil {
			return err
		}
		if !(worst <= bound) { // also fails for NaN
			return fmt.Errorf("%s is off by %.2g of its largest element; at most %g is allowed", t.name, worst, bound)
		}
		fmt.Fprintf(w, "%s: %d elements agree with the slope of the loss\n", t.name, n)
	}
	return nil
}

// compare moves n random elements of x, one at a time. It returns the largest difference between
// the slope of the loss and the gradient's element, relative to the gradient's largest element.
func compare(r *rand.Rand, n int, x, gradient []float32, loss func() (float64, error)) (worst float64, err error) {
	largest := 0.0
	for _, g := range gradient {
		largest = max(largest, math.Abs(float64(g)))
	}
	for range n {
		i := r.IntN(len(x))
		at := x[i]
		x[i] = at + step
		up, err := loss()
		if err != nil {
			return 0, err
		}
		x[i] = at - step
		down, err := loss()
		if err != nil {
			return 0, err
		}
		x[i] = at
		worst = max(worst, math.Abs((up-down)/(2*step)-float64(gradient[i]))/max(largest, math.SmallestNonzeroFloat32))
	}
	return worst, nil
}

// dot returns the sum of x*y over all elements. It skips elements of x that are -Inf: the LSE of a
// row that sees no key.
func dot(x, y flashkit.Tensor) float64 {
	sum := 0.0
	for i, a := range x.Float32s() {
		if !math.IsInf(float64(a), -1) {
			sum += float64(a) * float64(y.Float32s()[i])
		}
	}
	return sum
}

func zeros(s [4]int) flashkit.Tensor {
	return flashkit.F32(make([]float32, s[0]*s[1]*s[2]*s[3]), s[0], s[1], s[2], s[3])
}
