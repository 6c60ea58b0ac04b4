package dispatch_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// A clock is a backend whose kernels' predicted and actual times differ, in a synctest bubble.
type clock struct {
	name    string
	kernels []flashkit.Kernel
	calls   map[string]int
	slower  time.Duration // factor of the whole machine
	cold    time.Duration // added to every call
	shared  bool          // concurrent calls slow each other down
	running int
	mu      sync.Mutex
}

func (c *clock) Name() string               { return c.name }
func (c *clock) Kernels() []flashkit.Kernel { return c.kernels }
func (c *clock) Close() error               { return nil }

// add adds a kernel. Times are per key.
func (c *clock) add(stem string, predicts, takes time.Duration) *clock {
	name := c.name + "/" + stem
	c.kernels = append(c.kernels, flashkit.Kernel{
		Name: name,
		Cost: func(call *flashkit.Call) time.Duration { return predicts * time.Duration(call.KVLen) },
		Run: func(ctx context.Context, call *flashkit.Call) error {
			c.mu.Lock()
			c.calls[name]++
			c.running++
			c.mu.Unlock()
			time.Sleep(c.cold)
			const parts = 20
			for range parts {
				c.mu.Lock()
				share := time.Duration(1)
				if c.shared {
					share = time.Duration(c.running)
				}
				c.mu.Unlock()
				time.Sleep(takes * time.Duration(call.KVLen) * c.slower * share / parts)
			}
			c.mu.Lock()
			c.running--
			c.mu.Unlock()
			return ctx.Err()
		},
	})
	return c
}

func newClock(name string) *clock { return &clock{name: name, calls: map[string]int{}, slower: 1} }

// keys returns a problem of n keys and its tensors.
func keys(n int) (flashkit.Problem, *flashkit.Args) {
	p := problem
	p.KVLen = n
	x := func(rows int) flashkit.Tensor { return flashkit.F32(make([]float32, rows), 1, 1, rows, 1) }
	return p, &flashkit.Args{Q: x(1), K: x(n), V: x(n), O: x(1)}
}

func picked(t *testing.T, d *dispatch.Dispatcher, p flashkit.Problem) string {
	t.Helper()
	k, err := d.Pick(p, flashkit.PassForward)
	require.NoError(t, err)
	return k.Name
}

// A probe ends a wrong choice once it pays, even if calls always overlap: side by side, a kernel
// slower than its prediction is detected.
func TestProbesCorrectPredictions(t *testing.T) {
	for _, callers := range []int{1, 2, 8, 64} {
		synctest.Test(t, func(t *testing.T) {
			c := newClock("a").add("fwd_boasts", 10*time.Microsecond, 50*time.Microsecond).add("fwd_modest", 15*time.Microsecond, 15*time.Microsecond)
			c.shared = true
			d := dispatch.New(c)
			p, _ := keys(10)
			require.Equal(t, "a/fwd_boasts", picked(t, d, p))
			var wait sync.WaitGroup
			for range callers {
				wait.Go(func() {
					_, f := keys(10)
					for range 400 / callers {
						if err := d.Forward(t.Context(), p, f); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wait.Wait()
			require.Equal(t, "a/fwd_modest", picked(t, d, p))
			require.LessOrEqual(t, c.calls["a/fwd_boasts"], 260+5*callers, "calls that had begun, or begin while the probe runs, count for nothing")
			verdicts, err := d.Explain(p, flashkit.PassForward)
			require.NoError(t, err)
			require.Positive(t, verdicts[0].Last)
			require.Equal(t, dispatch.FromProbe, verdicts[1].From)
			require.Equal(t, 150*time.Microsecond, verdicts[1].Own)
			require.Equal(t, "a/fwd_boasts", picked(t, d.Blank(), p), "a blank one has forgotten")
		})
	}
}

// Times of calls never change a choice, even with cold caches, concurrent calls or a busy machine.
func TestCallsChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock("a").add("fwd_x", 100, 100).add("fwd_y", 170, 170).add("fwd_z", 450, 450)
		d := dispatch.New(c)
		c.cold = 200 * time.Microsecond
		for _, n := range []int{100, 10_000, 100} {
			p, f := keys(n)
			for range 30 {
				require.NoError(t, d.Forward(t.Context(), p, f))
			}
		}
		require.Equal(t, map[string]int{"a/fwd_x": 90}, c.calls)
		for n := 100; n < 1e7; n *= 2 {
			p, _ := keys(n)
			require.Equal(t, "a/fwd_x", picked(t, d, p), n)
		}
	})
}

// On a machine that slows down, the fastest kernel still runs nearly all the time.
func TestSlowerMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock("a").add("fwd_x", 10*time.Microsecond, 10*time.Microsecond).add("fwd_y", 15*time.Microsecond, 15*time.Microsecond).add("fwd_z", 45*time.Microsecond, 45*time.Microsecond)
		d := dispatch.New(c)
		p, f := keys(10)
		for _, slower := range []time.Duration{1, 3, 1, 10, 2} {
			c.slower = slower
			clear(c.calls)
			for range 200 {
				require.NoError(t, d.Forward(t.Context(), p, f))
			}
			require.LessOrEqual(t, c.calls["a/fwd_y"]+c.calls["a/fwd_z"], 5, "%d times slower", slower)
			require.Equal(t, "a/fwd_x", picked(t, d, p), "%d times slower", slower)
		}
	})
}

// With measurements near the size, the fastest kernel runs regardless of predictions.
func TestLearn(t *testing.T) {
	d := dispatch.New(newClock("a").add("fwd_x", 100, 100).add("fwd_y", 900, 900))
	p, _ := keys(10)
	require.Equal(t, "a/fwd_x", picked(t, d, p))
	require.NoError(t, d.Learn("a/fwd_x", p, 800))
	require.Equal(t, "a/fwd_x", picked(t, d, p), "the machine is fast, perhaps")
	require.NoError(t, d.Learn("a/fwd_y", p, 500))
	require.Equal(t, "a/fwd_y", picked(t, d, p))
	for range 4 {
		require.NoError(t, d.Learn("a/fwd_x", p, 300))
	}
	require.Equal(t, "a/fwd_x", picked(t, d, p))
	k, err := d.Pick(p, flashkit.PassForward)
	require.NoError(t, err)
	require.InDelta(t, 350, int64(k.Cost(p.Ask(k.Pass))), 50, "the latest ones count most")
}

// Long calls trigger a probe of the possibly fastest kernels if one is unmeasured. Short calls
// trigger one only after the same total time. Kernels with far slower predictions are not probed.
func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock("a").add("fwd_boasts", time.Microsecond, 9*time.Microsecond).add("fwd_modest", 1500, 1500).
			add("fwd_slow", time.Millisecond, time.Nanosecond)
		d := dispatch.New(c)
		long, f := keys(300_000)
		start := time.Now()
		require.NoError(t, d.Forward(t.Context(), long, f))
		require.Equal(t, "a/fwd_modest", picked(t, d, long))
		require.Less(t, time.Since(start)-450*time.Millisecond, 20*time.Millisecond)
		require.Zero(t, c.calls["a/fwd_slow"])
		calls := c.calls["a/fwd_boasts"]
		require.Positive(t, calls)

		longer, f := keys(400_000)
		require.NoError(t, d.Forward(t.Context(), longer, f))
		require.Equal(t, calls, c.calls["a/fwd_boasts"], "once is enough")
	})
}

// A dispatcher of one kernel has nothing to probe, and does not prevent others' probes.
func TestChoicesProbeForThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := dispatch.New(newClock("a").add("fwd_boasts", 10*time.Microsecond, 16*time.Microsecond).add("fwd_modest", 12*time.Microsecond, 8*time.Microsecond))
		one, err := all.With("a/fwd_boasts")
		require.NoError(t, err)
		p, f := keys(20)
		require.NoError(t, one.Probe(t.Context(), p, flashkit.PassForward))
		require.NoError(t, one.Forward(t.Context(), p, f))
		require.NoError(t, all.Probe(t.Context(), p, flashkit.PassForward))
		require.Equal(t, "a/fwd_modest", picked(t, all, p))
		require.Equal(t, "a/fwd_boasts", picked(t, one, p))
	})
}

// Short calls have no probe until its cost is relatively small. Probe does not wait.
func TestProbeWaitsUntilItIsWorthIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		add := func() *clock {
			return newClock("a").add("fwd_boasts", 10*time.Microsecond, 16*time.Microsecond).add("fwd_modest", 12*time.Microsecond, 8*time.Microsecond)
		}
		var probed, took time.Duration
		d := dispatch.New(add()).WithObserver(func(r dispatch.Ran) {
			if probed += r.Probed; probed == 0 {
				took += r.Took
			}
		})
		p, f := keys(20)
		for range 1000 {
			require.NoError(t, d.Forward(t.Context(), p, f))
		}
		require.Positive(t, probed)
		require.Less(t, probed, took/50)
		require.Equal(t, "a/fwd_modest", picked(t, d, p))

		asked := dispatch.New(add())
		require.NoError(t, asked.Probe(t.Context(), p, flashkit.PassForward))
		require.Equal(t, "a/fwd_modest", picked(t, asked, p))
	})
}

// No kernel passes one whose own prediction is more than twice as fast, unless it was measured near
// the size.
func TestFarRivalsMustBeMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := dispatch.New(newClock("a").add("fwd_x", 100*time.Microsecond, 100*time.Microsecond).add("fwd_y", 210*time.Microsecond, time.Microsecond))
		small, _ := keys(1)
		require.NoError(t, d.Learn("a/fwd_x", small, 100*time.Microsecond))
		require.NoError(t, d.Learn("a/fwd_y", small, time.Microsecond))
		require.Equal(t, "a/fwd_y", picked(t, d, small))
		near, _ := keys(4000)
		require.Equal(t, "a/fwd_y", picked(t, d, near))
		far, _ := keys(100_000)
		require.Equal(t, "a/fwd_x", picked(t, d, far))
	})
}

func TestProbeEndsWithTheContext(t *testing.T) {
	c := newClock("a").add("fwd_x", time.Microsecond, 0)
	d := dispatch.New(c)
	long, f := keys(1_000_000)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, d.Probe(ctx, long, flashkit.PassForward))
	require.Empty(t, c.calls)
	require.ErrorIs(t, d.Forward(ctx, long, f), context.Canceled)
	var wrong *flashkit.ProblemError
	var none context.Context
	require.ErrorAs(t, d.Forward(none, long, f), &wrong)
	require.ErrorAs(t, d.Probe(t.Context(), flashkit.Problem{}, flashkit.PassForward), &wrong)
}

func TestLearnRefuses(t *testing.T) {
	d := dispatch.New(newClock("a").add("fwd_x", 1, 1))
	var wrong *flashkit.ProblemError
	for name, err := range map[string]error{
		"kernel":  d.Learn("a/fwd_z", problem, time.Second),
		"took":    d.Learn("a/fwd_x", problem, 0),
		"Heads":   d.Learn("a/fwd_x", flashkit.Problem{}, time.Second),
		"kernel ": d.Learn("", problem, time.Second),
	} {
		require.ErrorAs(t, err, &wrong, name)
	}
}

// A frozen dispatcher learns nothing, even from others.
func TestFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock("a").add("fwd_x", 10*time.Microsecond, time.Millisecond).add("fwd_y", 20*time.Microsecond, time.Millisecond)
		d := dispatch.New(c)
		p, f := keys(10)
		long, _ := keys(100_000)
		frozen := d.Frozen()
		require.NoError(t, d.Learn("a/fwd_y", p, time.Millisecond))
		for range 100 {
			require.Equal(t, "a/fwd_x", picked(t, frozen, p))
			require.Equal(t, "a/fwd_x", picked(t, frozen, long))
			require.NoError(t, frozen.Forward(t.Context(), p, f))
			require.NoError(t, frozen.Learn("a/fwd_x", p, time.Second))
			require.NoError(t, frozen.Probe(t.Context(), long, flashkit.PassForward))
			require.NoError(t, d.Learn("a/fwd_x", p, time.Second))
		}
		require.Equal(t, "a/fwd_y", picked(t, d, p))
		require.Equal(t, 100, c.calls["a/fwd_x"])
		require.Zero(t, c.calls["a/fwd_y"])
	})
}

// Many problems evict each other; the choice stays the same.
func TestManyProblems(t *testing.T) {
	d := dispatch.New(newClock("a").add("fwd_x", 10, 10).add("fwd_y", 20, 20))
	for n := range 5000 {
		p, _ := keys(n + 1)
		require.Equal(t, "a/fwd_x", picked(t, d, p))
	}
}

// For the race detector: everything at once.
func TestConcurrentUse(t *testing.T) {
	d := dispatch.New(newClock("a").add("fwd_x", 10, 0).add("fwd_y", 11, 0))
	path := t.TempDir() + "/profile"
	var wait sync.WaitGroup
	for w := range 8 {
		wait.Go(func() {
			for i := range 50 {
				p, f := keys(1 + (i*7+w)%40)
				if err := d.Forward(t.Context(), p, f); err != nil {
					t.Error(err)
				}
				d.Learn("a/fwd_y", p, time.Duration(i+1))
				if i%10 == w {
					if err := d.SaveProfile(path); err != nil {
						t.Error(err)
					}
					if err := d.LoadProfile(path); err != nil {
						t.Error(err)
					}
					d.Frozen()
					d.Explain(p, flashkit.PassForward)
				}
			}
		})
	}
	wait.Wait()
}
