package bench

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// Naive is the name of the baseline: attention that stores its matrices in memory. It is not a
// backend of dispatch.
//
//	S = scale Q K^T    P = softmax(S)    O = P V
//	dP = dO V^T        dS = P * (dP - delta + dLSE)
//	dQ = scale dS K    dK = scale dS^T Q              dV = P^T dO
//
// Each product and the softmax is a step over all heads, and each [N, M] matrix is stored whole in
// float32. For a fair comparison, the rest of the code is like the portable kernels. The code is
// plain Go on all cores, and tiles of keys stay in the cache. It computes four dot products at a
// time and skips masked pairs.
const Naive = "naive"

// Peer is the backend in the names of other libraries' kernels, such as peer/pytorch.
const Peer = "peer"

func naiveKernels() []flashkit.Kernel {
	kernel := func(name string, pass flashkit.Pass, run func(context.Context, flashkit.Problem, *flashkit.Args) error) flashkit.Kernel {
		return flashkit.Kernel{
			Name: Naive + "/" + name, Pass: pass, Takes: flashkit.FeatureShift, DTypes: dtypes[:],
			Cost:  func(c *flashkit.Call) time.Duration { return naiveCost(c.Problem, pass) },
			Needs: func(c *flashkit.Call) flashkit.Memory { return flashkit.Memory{Host: naiveMemory(c.Problem, pass)} },
			Run:   func(ctx context.Context, c *flashkit.Call) error { return run(ctx, c.Problem, c.Args) },
		}
	}
	return []flashkit.Kernel{
		kernel("fwd_matrices", flashkit.PassForward, naiveForward),
		kernel("bwd_matrices", flashkit.PassBackward, naiveBackward),
	}
}

// naiveCost estimates a call's time, for the progress line.
func naiveCost(p flashkit.Problem, s flashkit.Pass) time.Duration {
	const flopsPerNanosecond = 4
	return time.Duration(min(p.FLOPs(s)/flopsPerNanosecond/float64(runtime.GOMAXPROCS(0)), math.MaxInt64/2))
}

// naiveMemory returns the bytes of the matrices (S and P; backward also dP and dS) and of float32
// copies of 16-bit tensors.
func naiveMemory(p flashkit.Problem, s flashkit.Pass) float64 {
	heads, matrices := float64(p.Batch)*float64(p.Heads), 2.
	copies := heads*float64(p.QLen)*float64(p.Dim) + float64(p.Batch)*float64(p.KVHeads)*float64(p.KVLen)*float64(p.Dim+p.VDim)
	rows := heads * float64(p.QLen)
	if s == flashkit.PassBackward {
		matrices = 4
		copies += 2 * rows * float64(p.VDim)
	}
	bytes := 4 * matrices * rows * float64(p.KVLen)
	if p.DType != flashkit.Float32 {
		bytes += 4 * copies
	}
	return bytes
}

const naiveTile = 64

// A naive is a call of the baseline. Its inputs are dense float32 arrays.
type naive struct {
	flashkit.Problem
	ctx         context.Context
	scale       float32
	q, k, v     []float32
	do, o       []float32
	lse, delta  []float32
	s, p        []float32 // matrices [B, H, N, M]
	dp, ds      []float32
	args        *flashkit.Args
	tilesOfRows int
}

func newNaive(ctx context.Context, p flashkit.Problem, pass flashkit.Pass, q, k, v flashkit.Tensor) (*naive, error) {
	if err := machine.Affordable("the matrices of "+p.String(), naiveMemory(p, pass)); err != nil {
		return nil, err
	}
	n := &naive{Problem: p, ctx: ctx, scale: float32(p.SoftmaxScale()), q: dense(q), k: dense(k), v: dense(v), tilesOfRows: (p.QLen + naiveTile - 1) / naiveTile}
	n.s, n.p = n.matrix(), n.matrix()
	return n, nil
}

func (n *naive) matrix() []float32 { return make([]float32, n.Batch*n.Heads*n.QLen*n.KVLen) }

func naiveForward(ctx context.Context, p flashkit.Problem, f *flashkit.Args) error {
	n, err := newNaive(ctx, p, flashkit.PassForward, f.Q, f.K, f.V)
	if err != nil {
		return err
	}
	n.args = f
	for _, step := range []func(rowTile){n.scores, n.softmax, n.values} {
		if err := n.overRows(step); err != nil {
			return err
		}
	}
	return nil
}

func naiveBackward(ctx context.Context, p flashkit.Problem, b *flashkit.Args) error {
	n, err := newNaive(ctx, p, flashkit.PassBackward, b.Q, b.K, b.V)
	if err != nil {
		return err
	}
	n.args, n.dp, n.ds = b, n.matrix(), n.matrix()
	n.do, n.o, n.lse, n.delta = dense(b.DO), dense(b.O), dense(b.LSE), make([]float32, p.Batch*p.Heads*p.QLen)
	for _, step := range []func(rowTile){n.scores, n.weights, n.weightGradients, n.scoreGradients, n.queryGradients} {
		if err := n.overRows(step); err != nil {
			return err
		}
	}
	return n.overKeys(n.keyGradients)
}

// A rowTile is rows [from, to) of query head h in batch entry b. kvHead is the KV head of h.
type rowTile struct{ b, h, kvHead, from, to int }

// row returns the index of row i among the rows of all heads.
func (n *naive) row(t rowTile, i int) int { return (t.b*n.Heads+t.h)*n.QLen + i }

// keyRow returns the index of key j of KV head g among the keys of all KV heads.
func (n *naive) keyRow(b, g, j int) int { return (b*n.KVHeads+g)*n.KVLen + j }

// overRows calls step for every tile of rows, on all cores.
func (n *naive) overRows(step func(rowTile)) error {
	return onAllCores(n.ctx, n.Batch*n.Heads*n.tilesOfRows, func(item int) {
		head, from := item/n.tilesOfRows, item%n.tilesOfRows*naiveTile
		b, h := head/n.Heads, head%n.Heads
		step(rowTile{b, h, h / (n.Heads / n.KVHeads), from, min(from+naiveTile, n.QLen)})
	})
}

// overKeys calls step for every tile of keys of every KV head, on all cores.
func (n *naive) overKeys(step func(b, g, from, to int)) error {
	tiles := (n.KVLen + naiveTile - 1) / naiveTile
	return onAllCores(n.ctx, n.Batch*n.KVHeads*tiles, func(item int) {
		head, from := item/tiles, item%tiles*naiveTile
		step(head/n.KVHeads, head%n.KVHeads, from, min(from+naiveTile, n.KVLen))
	})
}

// onAllCores calls f once with each of 0..n-1, until ctx is done.
func onAllCores(ctx context.Context, n int, f func(item int)) error {
	var next atomic.Int64
	var running sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		running.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && ctx.Err() == nil; i = next.Add(1) - 1 {
				f(int(i))
			}
		})
	}
	running.Wait()
	return ctx.Err()
}
