// Package ringtest compares the ranks of a group with one process on random problems, which every
// rank draws from the same seed. It tests package ring and its transports.
package ringtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/ring"
)

// A Case is a problem with the whole arguments, for both passes.
type Case struct {
	Problem flashkit.Problem
	Args    *flashkit.Args

	// Merges is the number of times that ranks round an LSE, and with it a weight, where one
	// process rounds nothing. Only a stand-in for a GPU needs Merges: the stand-in's kernels
	// compute in float64, so the error of one process is too small to bound these roundings.
	Merges int

	want     []answer // by sequence
	baseline []float64
	largest  []float64
}

// outputs are the outputs of both passes, in the order of an answer.
var outputs = []string{"O", "LSE", "DQ", "DK", "DV"}

type answer [5][]float64

// New returns the case that seed and n determine. The Runner `one` computes the whole problem in
// one process, as the reference of the ranks.
func New(ctx context.Context, seed, n uint64, one ring.Runner) (*Case, error) {
	r := rand.New(rand.NewPCG(seed, n))
	c := &Case{Problem: problem(r)}
	drops := rand.New(rand.NewPCG(n, seed))
	if drops.IntN(3) == 0 {
		c.Problem.Score.Dropout, c.Problem.Score.Origin = [...]float32{.1, .5}[drops.IntN(2)], drops.IntN(3) == 0
	}
	c.Args = c.random(r)
	c.drawOrigin(drops)
	for _, run := range []func(context.Context, flashkit.Problem, *flashkit.Args) error{one.Forward, one.Backward} {
		if err := run(ctx, c.Problem, c.Args); err != nil {
			return nil, fmt.Errorf("%v: %w", c.Problem, err)
		}
	}
	c.solve()
	return c, nil
}

// problem draws a problem for any group size: few or many rows, packed or not.
func problem(r *rand.Rand) flashkit.Problem {
	p := flashkit.Problem{Batch: 1 + r.IntN(2), KVHeads: 1 + r.IntN(2), Dim: 4 + r.IntN(13), VDim: 4 + r.IntN(13), DType: flashkit.Float32}
	p.Heads = p.KVHeads * (1 + r.IntN(3))
	p.QLen = []int{1 + r.IntN(12), 1 + r.IntN(70), 100 + r.IntN(200)}[r.IntN(3)]
	if p.KVLen = p.QLen; r.IntN(3) == 0 {
		p.KVLen = 1 + r.IntN(150)
	}
	switch r.IntN(6) {
	case 0, 1, 2:
		p.Band = flashkit.Causal()
	case 3:
		p.Band = flashkit.Window(r.IntN(40), 0)
	case 4:
		p.Band = flashkit.Window(r.IntN(20)-1, r.IntN(20)-1)
	}
	if r.IntN(5) == 0 {
		p.Band = p.Band.TopLeft().Shift(r.IntN(9) - 4)
	}
	if r.IntN(4) == 0 {
		p.DType = []flashkit.DType{flashkit.Float16, flashkit.BFloat16}[r.IntN(2)]
	}
	if r.IntN(4) == 0 {
		p.Score.Softcap = 3
	}
	p.Score.ALiBi, p.Score.Sink = r.IntN(5) == 0, r.IntN(4) == 0
	if p.Ragged = r.IntN(3) == 0; p.Ragged {
		p.Batch = r.IntN(9)
	}
	return p
}

// random draws the arguments, with packed sequences of unequal lengths if the problem is ragged.
func (c *Case) random(r *rand.Rand) *flashkit.Args {
	p := &c.Problem
	args := new(flashkit.Args)
	shape := flashkit.Problem(*p)
	if p.Ragged {
		s := &flashkit.Sequences{QStarts: []int32{0}, KVStarts: []int32{0}}
		for b := range p.Batch {
			n := r.IntN(p.QLen+1) >> r.IntN(4)
			m := n
			if p.QLen != p.KVLen {
				m = r.IntN(p.KVLen + 1)
			}
			s.QStarts, s.KVStarts = append(s.QStarts, s.QStarts[b]+int32(n)), append(s.KVStarts, s.KVStarts[b]+int32(m))
		}
		args.Seqs = s
		shape.Batch, shape.QLen, shape.KVLen, shape.Ragged = 1, int(s.QStarts[p.Batch]), int(s.KVStarts[p.Batch]), false
	}
	dense := flashkit.NewArgs(shape, flashkit.PassBackward)
	dense.Seqs = args.Seqs
	for _, a := range flashkit.Arguments() {
		t := a.Of(dense)
		if role := a.Role(p, flashkit.PassBackward); role&flashkit.Output == 0 && a.Name != "O" && a.Name != "LSE" {
			draw(r, *t)
		}
	}
	return dense
}

// drawOrigin draws dropout's seed and origin.
func (c *Case) drawOrigin(r *rand.Rand) {
	if c.Problem.Score.Dropout != 0 {
		c.Args.Seed = r.Uint64()
	}
	if far := func() int { return r.IntN(1<<30) >> r.IntN(31) }; c.Problem.Score.Origin {
		c.Args.Origin = flashkit.Origin{Batch: far(), Head: far(), Row: far(), Key: far() / 8 * 8}
	}
}

func draw(r *rand.Rand, t flashkit.Tensor) {
	x := make([]float32, t.Len())
	for i := range x {
		x[i] = r.Float32()*2 - 1
	}
	switch t.DType() {
	case flashkit.Float16:
		copy(t.Uint16s(), flashkit.ToF16(x))
	case flashkit.BFloat16:
		copy(t.Uint16s(), flashkit.ToBF16(x))
	default:
		copy(t.Float32s(), x)
	}
}

// A place is the position of a sequence's rows and keys.
type place struct{ b, q0, n, k0, m int }

func (c *Case) places() (list []place) {
	for b := range c.Problem.Batch {
		x := place{b, 0, c.Problem.QLen, 0, c.Problem.KVLen}
		if s := c.Args.Seqs; s != nil {
			x = place{0, int(s.QStarts[b]), int(s.QStarts[b+1] - s.QStarts[b]), int(s.KVStarts[b]), int(s.KVStarts[b+1] - s.KVStarts[b])}
		}
		list = append(list, x)
	}
	return list
}

// solve computes the oracle's answers and the error of one process. One process may be very exact
// by luck. For all outputs but LSE, solve therefore raises the error to at least two limits. The
// first is 2^-23 times the largest |LSE| times the output's largest value: every weight is
// exp(score-LSE), and ranks round LSE for each part of a row's keys. |LSE| may exceed 100 with
// ALiBi. The second is the rounding error of the output's largest value, because ranks store each
// part of a gradient in the gradient's type.
func (c *Case) solve() {
	c.baseline, c.largest = make([]float64, len(outputs)), make([]float64, len(outputs))
	for b, x := range c.places() {
		p := c.Problem
		p.Batch, p.QLen, p.KVLen, p.Ragged = 1, x.n, x.m, false
		rows := func(t flashkit.Tensor) []float64 { return values(t, x.b, x.q0, x.n) }
		keys := func(t flashkit.Tensor) []float64 { return values(t, x.b, x.k0, x.m) }
		a := c.Args
		in := oracle.Inputs{Q: rows(a.Q), K: keys(a.K), V: keys(a.V), DO: rows(a.DO), DLSE: rows(a.DLSE), Seed: a.Seed}
		in.Origin = [4]int{a.Origin.Batch + b, a.Origin.Head, a.Origin.Row, a.Origin.Key}
		if p.Score.ALiBi {
			in.Slopes = values(a.Slopes, min(x.b, a.Slopes.Shape()[0]-1), 0, 1)
		}
		if p.Score.Sink {
			in.Sink = values(a.Sink, 0, 0, 1)
		}
		o, lse := oracle.Forward(p, in)
		g := oracle.Backward(p, in)
		c.want = append(c.want, answer{o, lse, g.DQ, g.DK, g.DV})
	}
	c.each(c.Args, func(i int, got, want float64) error {
		if e := math.Abs(got - want); e > c.baseline[i] {
			c.baseline[i] = e
		}
		if !math.IsInf(want, 0) {
			c.largest[i] = max(c.largest[i], math.Abs(want))
		}
		return nil
	})
	for i := range c.baseline {
		if outputs[i] != "LSE" {
			c.baseline[i] = max(c.baseline[i], 0x1p-23*c.largest[1]*c.largest[i], c.unit(i)*c.largest[i])
		}
	}
}

// values returns rows of one batch entry, of all heads, as float64.
func values(t flashkit.Tensor, b, r0, n int) (x []float64) {
	for h := range t.Shape()[1] {
		for r := r0; r < r0+n; r++ {
			at := t.Offset(b, h, r)
			for i := at; i < at+t.Shape()[3]; i++ {
				switch t.DType() {
				case flashkit.Float16:
					x = append(x, float64(half.FromF16(t.Uint16s()[i])))
				case flashkit.BFloat16:
					x = append(x, float64(half.FromBF16(t.Uint16s()[i])))
				default:
					x = append(x, float64(t.Float32s()[i]))
				}
			}
		}
	}
	return x
}

// each calls f with every element of the outputs and the oracle's value.
func (c *Case) each(a *flashkit.Args, f func(i int, got, want float64) error) error {
	for s, x := range c.places() {
		for i, t := range []flashkit.Tensor{a.O, a.LSE, a.DQ, a.DK, a.DV} {
			r0, n := x.q0, x.n
			if i >= 3 {
				r0, n = x.k0, x.m
			}
			for at, got := range values(t, x.b, r0, n) {
				if err := f(i, got, c.want[s][i][at]); err != nil {
					return fmt.Errorf("%v, sequence %d, %s[%d]: %w", c.Problem, s, outputs[i], at, err)
				}
			}
		}
	}
	return nil
}

// Check computes both passes on this rank and compares the rank's shard with the oracle's answers.
// The bound is twice one process's error (three times for gradients) plus the rounding of the
// results. With ordered, the shard must equal one process's results bit by bit.
func (c *Case) Check(ctx context.Context, g ring.Group, r ring.Runner, ordered bool) error {
	return c.CheckPlaced(ctx, g, r, ordered, nil)
}

// A Place moves a shard to the rank's device. back copies the outputs of a pass to the shard.
type Place func(shard *flashkit.Args) (args *flashkit.Args, back func(flashkit.Pass) error, err error)

// CheckPlaced is Check for ranks with tensors on devices.
func (c *Case) CheckPlaced(ctx context.Context, g ring.Group, r ring.Runner, ordered bool, place Place) (err error) {
	x, err := ring.New(g, r, ring.Options{Ordered: ordered})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	cut, err := ring.NewCut(c.Problem, c.Args.Seqs, g.Size(), ordered)
	if err != nil {
		return err
	}
	shard, err := cut.Shard(g.Rank(), c.Args)
	if err != nil {
		return err
	}
	if ordered && c.Problem.Ragged {
		shard.DSink = flashkit.Tensor{} // not supported for packed sequences in order
	}
	fillNaN(shard.O, shard.LSE, shard.DQ, shard.DK, shard.DV)
	args, back := shard, func(flashkit.Pass) error { return nil }
	if place != nil {
		if args, back, err = place(shard); err != nil {
			return err
		}
	}
	if err := errors.Join(x.Forward(ctx, c.Problem, args), back(flashkit.PassForward)); err != nil {
		return err
	}
	if err := errors.Join(x.Backward(ctx, c.Problem, args), back(flashkit.PassBackward)); err != nil {
		return err
	}
	// Elements of got outside this rank's shard are one process's results, which are correct.
	got := *c.Args
	for _, t := range []*flashkit.Tensor{&got.O, &got.LSE, &got.DQ, &got.DK, &got.DV} {
		*t = clone(*t)
	}
	got.DSink = flashkit.Tensor{}
	if err := errors.Join(cut.Join(g.Rank(), flashkit.PassForward, &got, shard), cut.Join(g.Rank(), flashkit.PassBackward, &got, shard)); err != nil {
		return err
	}
	if ordered {
		return c.sameBits(&got)
	}
	return c.each(&got, func(i int, got, want float64) error {
		if bound := c.bound(i); got != want && !(math.Abs(got-want) <= bound) {
			return fmt.Errorf("%g, want %g within %.3g; rank %d of %d", got, want, bound, g.Rank(), g.Size())
		}
		return nil
	})
}

// unit is the largest relative error of storing an output.
func (c *Case) unit(i int) float64 {
	if outputs[i] == "LSE" {
		return 0x1p-24
	}
	return map[flashkit.DType]float64{flashkit.Float32: 0x1p-24, flashkit.Float16: 0x1p-11, flashkit.BFloat16: 0x1p-8}[c.Problem.DType]
}

// bound returns the allowed error of output i: the bound of package conformance, plus the roundings
// of Merges.
func (c *Case) bound(i int) float64 {
	times := 2.0
	if i >= 2 {
		times = 3
	}
	merged := float64(c.Merges) * 0x1p-24 * max(1, c.largest[1]) * c.largest[i]
	return times*c.baseline[i] + 0x1p-20*max(1, c.largest[i]) + c.unit(i)*c.largest[i] + merged
}

func (c *Case) sameBits(got *flashkit.Args) error {
	one := *c.Args
	for i, x := range [][2]flashkit.Tensor{{got.O, one.O}, {got.LSE, one.LSE}, {got.DQ, one.DQ}, {got.DK, one.DK}, {got.DV, one.DV}} {
		for at := range x[0].Float32s() {
			if a, b := x[0].Float32s()[at], x[1].Float32s()[at]; math.Float32bits(a) != math.Float32bits(b) {
				return fmt.Errorf("%v in order: %s[%d] = %g, one process has %g", c.Problem, outputs[i], at, a, b)
			}
		}
		for at := range x[0].Uint16s() {
			if a, b := x[0].Uint16s()[at], x[1].Uint16s()[at]; a != b {
				return fmt.Errorf("%v in order: %s[%d] = %#x, one process has %#x", c.Problem, outputs[i], at, a, b)
			}
		}
	}
	return nil
}

func clone(t flashkit.Tensor) flashkit.Tensor {
	s, b := t.Shape(), t.Strides()
	switch t.DType() {
	case flashkit.Float16:
		return flashkit.F16(append([]uint16(nil), t.Uint16s()...), s[0], s[1], s[2], s[3]).WithStrides(b[0], b[1], b[2])
	case flashkit.BFloat16:
		return flashkit.BF16(append([]uint16(nil), t.Uint16s()...), s[0], s[1], s[2], s[3]).WithStrides(b[0], b[1], b[2])
	}
	return flashkit.F32(append([]float32(nil), t.Float32s()...), s[0], s[1], s[2], s[3]).WithStrides(b[0], b[1], b[2])
}

// fillNaN fills outputs with NaN, which must not remain.
func fillNaN(list ...flashkit.Tensor) {
	for _, t := range list {
		for i := range t.Float32s() {
			t.Float32s()[i] = float32(math.NaN())
		}
		for i := range t.Uint16s() {
			t.Uint16s()[i] = 0x7fff
		}
	}
}
