package conformance_test

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance"
)

// A faulty backend has the correct kernels with a fault, and the optional methods of backends.
type faulty struct {
	flashkit.Backend
	workspace float32
	fault     func(b *faulty, run func() error, c *flashkit.Call) error
	invariant bool
}

func (b *faulty) Poison()              { b.workspace = float32(math.NaN()) }
func (b *faulty) BatchInvariant() bool { return b.invariant }

func (b *faulty) Kernels() []flashkit.Kernel {
	list := b.Backend.Kernels()
	for i := range list {
		run := list[i].Run
		list[i].Refuses = func(c *flashkit.Call) string { // others would take the tests longer
			if c.DType != flashkit.Float32 {
				return "float32 is enough here"
			}
			return ""
		}
		list[i].Run = func(ctx context.Context, c *flashkit.Call) error {
			return b.fault(b, func() error { return run(ctx, c) }, c)
		}
	}
	return list
}

// failures returns the backend's failures among o's cases, of which it must support some.
func (b *faulty) failures(t *testing.T, o conformance.Options) (failed []conformance.Result) {
	t.Helper()
	took := 0
	for _, k := range b.Kernels() { // one after the other, as they share a workspace
		o.Kernel = k.Name
		for r := range conformance.Results(t.Context(), b.Kernels(), o) {
			if r.Unsupported() {
				continue
			}
			if took++; r.Err != nil {
				failed = append(failed, r)
			}
		}
	}
	require.NotZero(t, took)
	return failed
}

func newFaulty(t *testing.T, fault func(b *faulty, run func() error, c *flashkit.Call) error) *faulty {
	return &faulty{Backend: newMutant(t, ""), fault: fault, invariant: true}
}

// outputsOf returns the memory of an output of a float32 call.
func outputsOf(c *flashkit.Call) []float32 {
	if c.Pass == flashkit.PassForward {
		return c.Args.O.Float32s()
	}
	return c.Args.DQ.Float32s()
}

// A kernel that reads workspace which it has not written is right by chance, unless it is poisoned.
func TestPoison(t *testing.T) {
	b := newFaulty(t, func(b *faulty, run func() error, c *flashkit.Call) error {
		err := run()
		if x := outputsOf(c); err == nil && len(x) > 0 {
			x[0] += 0 * b.workspace
			b.workspace = 1
		}
		return err
	})
	o := conformance.Options{Case: "causal_short"}
	require.Empty(t, b.failures(t, o))
	o.Backends = []flashkit.Backend{b}
	require.Len(t, b.failures(t, o), 2, "forward and backward")
}

func TestBatchInvariance(t *testing.T) {
	b := newFaulty(t, func(_ *faulty, run func() error, c *flashkit.Call) error {
		err := run()
		if x := outputsOf(c); err == nil && len(x) > 0 && c.Batch == 1 {
			x[0] = math.Nextafter32(x[0], 9)
		}
		return err
	})
	o := conformance.Options{Case: "alone_as_in_batch", Backends: []flashkit.Backend{b}}
	require.Len(t, b.failures(t, o), 2)
	b.invariant = false
	for _, k := range b.Kernels() {
		o.Kernel = k.Name
		require.Zero(t, o.Count(b.Kernels()), "nobody promised it")
	}
	b = newFaulty(t, func(_ *faulty, run func() error, _ *flashkit.Call) error { return run() })
	require.Empty(t, b.failures(t, conformance.Options{Case: "alone_as_in_batch", Backends: []flashkit.Backend{b}}))
}

// A plan cached by problem alone is the plan of the first call.
func TestCalledInTurns(t *testing.T) {
	for _, later := range []bool{false, true} {
		plans := map[flashkit.Problem]flashkit.Traits{}
		b := newFaulty(t, func(_ *faulty, run func() error, c *flashkit.Call) error {
			plan, known := plans[c.Problem]
			if !known {
				plans[c.Problem], plan = c.Traits, c.Traits
			}
			err := run()
			if more := plan.Load < c.Traits.Load; err == nil && plan != c.Traits && more == later {
				outputsOf(c)[0]++
			}
			return err
		})
		require.Len(t, b.failures(t, conformance.Options{Case: "called_in_turns"}), 2)
	}
}

// A kernel that skips a masked panel finds the previous panel's leftovers.
func TestLeftovers(t *testing.T) {
	for _, rows := range []int{16, 64} {
		b := newFaulty(t, func(_ *faulty, run func() error, c *flashkit.Call) error {
			if args := *c.Args; c.Score.Mask {
				args.Mask = withLeftovers(args.Mask, rows)
				defer func(a *flashkit.Args) { c.Args = a }(c.Args)
				c.Args = &args
			}
			return run()
		})
		for _, name := range []string{"left_of_keys", "left_of_rows"} {
			require.Len(t, b.failures(t, conformance.Options{Case: name}), 2, "%s, %d rows", name, rows)
		}
	}
}

// withLeftovers returns a mask in which each wholly hidden panel, of the given rows and 16 keys, is a copy of
// the panel before it, except the first.
func withLeftovers(t flashkit.Tensor, rows int) flashkit.Tensor {
	s, x := t.Shape(), append([]bool(nil), t.Bools()...)
	for head := range s[0] * s[1] {
		for i := 0; i < s[2]; i += rows {
			for j := 16; j < s[3]; j += 16 {
				at := func(r, c int) *bool { return &x[(head*s[2]+i+r)*s[3]+j+c] }
				n, m, shown := min(rows, s[2]-i), min(16, s[3]-j), false
				for r := range n {
					for c := range m {
						shown = shown || *at(r, c)
					}
				}
				for r := 0; r < n && !shown; r++ {
					for c := range m {
						*at(r, c) = *at(r, c-16)
					}
				}
			}
		}
	}
	return flashkit.Bools(x, s[0], s[1], s[2], s[3])
}

// A kernel that reads a whole vector at a tensor's tail may read unmapped memory.
func TestEdgesOfMemory(t *testing.T) {
	var read atomic.Uint32 // keeps the reads
	for _, side := range []string{"behind", "before", ""} {
		b := newFaulty(t, func(_ *faulty, run func() error, c *flashkit.Call) error {
			x := c.Args.Q.Float32s()
			if at := unsafe.Pointer(unsafe.SliceData(x)); len(x) > 0 && c.Args.Workers == 1 {
				switch side {
				case "behind":
					read.Store(*(*uint32)(unsafe.Add(at, 4*len(x))))
				case "before":
					read.Store(*(*uint32)(unsafe.Add(at, -4)))
				}
			}
			return run()
		})
		o := conformance.Options{Case: "edges_of_memory*"}
		if _, passed := verdicts(t, newMutant(t, "").Kernels()[0], func(*flashkit.Kernel) {}, o.Case); passed == 0 {
			t.Skip("no pages without access here")
		}
		want := 4
		if side == "" {
			want = 0
		}
		require.Len(t, b.failures(t, o), want, side)
	}
}

// A failure names the case's mistake and the wrong elements.
func TestFailureSaysWhere(t *testing.T) {
	b := newFaulty(t, func(_ *faulty, run func() error, c *flashkit.Call) error {
		err := run()
		if err == nil && c.Pass == flashkit.PassForward {
			for _, r := range []int{0, 2} { // two elements of one row, one of another
				c.Args.O.Float32s()[c.Args.O.Offset(0, 0, r)] += float32(r + 1)
			}
			c.Args.O.Float32s()[c.Args.O.Offset(0, 0, 2)+1]++
		}
		return err
	})
	failed := b.failures(t, conformance.Options{Case: "causal_short"})
	require.Len(t, failed, 1)
	require.Equal(t, "a causal mask aligned to the top left when N < M", failed[0].Catches)
	require.ErrorContains(t, failed[0].Err, "o[0,0,2,0] = ")
	require.ErrorContains(t, failed[0].Err, "; 3 of 24 elements are wrong, in 2 of 3 rows: [0,0,0] [0,0,2]")
}
