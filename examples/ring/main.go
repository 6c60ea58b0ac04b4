// Ring trains the projections of an attention layer. The sequence is split over the ranks of MPI:
//
//	mpiexec -n 4 go run ./examples/ring
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/mpi"
)

const rows, dim, rate = 512, 16, 1

var problem = flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: rows, KVLen: rows, Dim: dim, VDim: dim, DType: flashkit.Float32, Band: flashkit.Causal()}

func main() {
	if status, watched := mpi.Watch(os.Stderr); watched {
		os.Exit(status)
	}
	g, err := mpi.Open(context.Background())
	if err == nil {
		err = train(context.Background(), g)
	}
	if err == nil {
		err = g.Close()
	}
	if err != nil {
		log.Fatal(err) // this rank ends, and mpiexec then ends the other ranks
	}
}

func train(ctx context.Context, g ring.Group) error {
	d := dispatch.New(simd.New())
	defer d.Close()
	r, err := ring.New(g, d, ring.Options{})
	if err != nil {
		return err
	}
	defer r.Close()
	a, x, w, err := layer(g)
	if err != nil {
		return err
	}
	for step := range 20 {
		for i, t := range []flashkit.Tensor{a.Q, a.K, a.V} {
			multiply(t.Float32s(), x, w[i*dim*dim:][:dim*dim])
		}
		if err := r.Forward(ctx, problem, a); err != nil {
			return err
		}
		gradient := append(make([]float32, len(w)), loss(a, x))
		if err := r.Backward(ctx, problem, a); err != nil {
			return err
		}
		for i, t := range []flashkit.Tensor{a.DQ, a.DK, a.DV} {
			transposed(gradient[i*dim*dim:][:dim*dim], x, t.Float32s())
		}
		if err := sum(ctx, g, gradient); err != nil { // adds the gradients and losses of all ranks
			return err
		}
		for i := range w {
			w[i] -= rate * gradient[i]
		}
		if g.Rank() == 0 && step%5 == 4 {
			fmt.Printf("step %d: loss %.4f\n", step+1, gradient[len(w)])
		}
	}
	return nil
}

// layer returns this rank's rows of the attention's tensors and of the layer's input x, [rows of
// the rank, dim]. It also returns the weights w, [3, dim, dim], of the projections to Q, K and V.
// These weights are equal on all ranks.
func layer(g ring.Group) (a *flashkit.Args, x, w []float32, err error) {
	cut, err := ring.NewCut(problem, nil, g.Size(), false)
	if err != nil {
		return nil, nil, nil, err
	}
	whole := flashkit.NewArgs(problem, flashkit.PassBackward)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range whole.Q.Float32s() {
		whole.Q.Float32s()[i] = float32(random.NormFloat64()) // the input: layer copies it to x, and train overwrites Q
	}
	for range 3 * dim * dim {
		w = append(w, float32(random.NormFloat64())/4)
	}
	if a, err = cut.Shard(g.Rank(), whole); err != nil {
		return nil, nil, nil, err
	}
	return a, append(x, a.Q.Float32s()...), w, nil
}

// loss returns this rank's part of the loss. The loss is the mean squared difference between O and
// 0.1 times the input. The function also sets dO to the gradient of O.
func loss(a *flashkit.Args, x []float32) (sum float32) {
	for i, o := range a.O.Float32s() {
		off := o - x[i]/10
		sum += off * off / (rows * dim)
		a.DO.Float32s()[i] = 2 * off / (rows * dim)
	}
	return sum
}

// multiply sets y to x w.
func multiply(y, x, w []float32) {
	clear(y)
	for i := range y {
		for k := range dim {
			y[i] += x[i/dim*dim+k] * w[k*dim+i%dim]
		}
	}
}

// transposed adds xᵀ y to w.
func transposed(w, x, y []float32) {
	for i := range y {
		for k := range dim {
			w[k*dim+i%dim] += x[i/dim*dim+k] * y[i]
		}
	}
}

// sum replaces each element of x by its sum over all ranks, added in rank order.
func sum(ctx context.Context, g ring.Group, x []float32) error {
	mine := make([]byte, 4*len(x))
	for i, f := range x {
		binary.LittleEndian.PutUint32(mine[4*i:], math.Float32bits(f))
	}
	all := make([]byte, len(mine)*g.Size())
	if err := g.Gather(ctx, mine, all); err != nil {
		return err
	}
	clear(x)
	for i := range len(x) * g.Size() {
		x[i%len(x)] += math.Float32frombits(binary.LittleEndian.Uint32(all[4*i:]))
	}
	return nil
}
