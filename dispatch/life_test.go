package dispatch_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// A life is a simulated machine in a synctest bubble, and a program's calls on it.
type life struct {
	name    string
	kernels []maker
	program func(l *life)

	t      *testing.T
	d      *dispatch.Dispatcher
	random *rand.Rand

	mu      sync.Mutex
	running int
	cold    time.Duration // added to every call
	slow    float64       // factor of the whole machine
	calls   []dispatch.Ran
}

// A maker is a kernel: picoseconds per FLOP and nanoseconds per call, predicted and actual.
type maker struct {
	stem            string
	predicts, takes float64
	begins, began   float64
	rows            int // at most; 0 for no limit
	device          bool
}

func (k *maker) pass() flashkit.Pass {
	if k.stem[:3] == "bwd" {
		return flashkit.PassBackward
	}
	return flashkit.PassForward
}

func (k *maker) own(p flashkit.Problem) float64 { return k.begins + p.FLOPs(k.pass())*k.predicts/1e3 }

func (k *maker) truth(p flashkit.Problem) float64 {
	return max(k.begins, k.began) + p.FLOPs(k.pass())*k.takes/1e3
}

// half is a life's kernels on the processor or on a device.
type half struct {
	*life
	device bool
}

func (h half) Close() error { return nil }

func (h half) Name() string {
	if h.device {
		return "gpu"
	}
	return "cpu"
}

func (h half) Kernels() (list []flashkit.Kernel) {
	for i := range h.kernels {
		k := &h.kernels[i]
		if k.device != h.device {
			continue
		}
		x := flashkit.Kernel{
			Name: h.Name() + "/" + k.stem,
			Pass: k.pass(),
			Refuses: func(c *flashkit.Call) string {
				if k.rows > 0 && c.QLen > k.rows {
					return "too many rows"
				}
				return ""
			},
			Cost: func(c *flashkit.Call) time.Duration { return time.Duration(k.own(c.Problem)) },
			Run:  func(ctx context.Context, c *flashkit.Call) error { return h.run(ctx, k.truth(c.Problem)) },
		}
		list = append(list, x)
	}
	return list
}

// gpu is a half with a device.
type gpu struct{ half }

func (gpu) Hardware() (device, driver string) { return "GPU", "1" }

// run takes simulated time, with noise, rare much longer calls, cold caches, other programs and
// other calls.
func (l *life) run(ctx context.Context, nanoseconds float64) error {
	l.mu.Lock()
	nanoseconds *= math.Exp(.05 * l.random.NormFloat64())
	if l.random.IntN(30) == 0 {
		nanoseconds *= 1 + 4*l.random.Float64()
	}
	l.running++
	l.mu.Unlock()
	time.Sleep(l.cold)
	const parts = 25 // so that changes of load take effect soon
	for range parts {
		l.mu.Lock()
		share := float64(l.running) * l.slow
		l.mu.Unlock()
		time.Sleep(time.Duration(nanoseconds * share / parts))
	}
	l.mu.Lock()
	l.running--
	l.mu.Unlock()
	return ctx.Err()
}

// call makes sequential calls of a problem.
func (l *life) call(name string, times int) {
	p, err := flashkit.ParseProblem(name)
	require.NoError(l.t, err)
	x := func(shape [4]int) flashkit.Tensor {
		n := shape[0] * shape[1] * shape[2] * shape[3]
		if p.DType == flashkit.BFloat16 {
			return flashkit.BF16(make([]uint16, n), shape[0], shape[1], shape[2], shape[3])
		}
		return flashkit.F32(make([]float32, n), shape[0], shape[1], shape[2], shape[3])
	}
	f := &flashkit.Args{Q: x(p.QShape()), K: x(p.KShape()), V: x(p.VShape()), O: x(p.OShape())}
	for range times {
		if err := l.d.Forward(l.t.Context(), p, f); err != nil {
			l.t.Error(err)
		}
	}
}

// grad makes calls of the backward pass.
func (l *life) grad(name string, times int) {
	p, err := flashkit.ParseProblem(name)
	require.NoError(l.t, err)
	x := func(shape [4]int) flashkit.Tensor {
		return flashkit.F32(make([]float32, shape[0]*shape[1]*shape[2]*shape[3]), shape[0], shape[1], shape[2], shape[3])
	}
	lse := flashkit.F32(make([]float32, p.Batch*p.Heads*p.QLen), p.Batch, p.Heads, p.QLen, 1)
	b := &flashkit.Args{Q: x(p.QShape()), K: x(p.KShape()), V: x(p.VShape()), O: x(p.OShape()), LSE: lse, DO: x(p.OShape()),
		DQ: x(p.QShape()), DK: x(p.KShape()), DV: x(p.VShape())}
	for range times {
		require.NoError(l.t, l.d.Backward(l.t.Context(), p, b))
	}
}

// decode makes calls of one row over growing keys.
func (l *life) decode(from, to, layers int) {
	for m := from; m < to; m++ {
		l.call(fmt.Sprintf("b1-h8-g2-n1-m%d-d64-f32", m), layers)
	}
}

// serve makes calls from several goroutines.
func (l *life) serve(callers, times int, names ...string) {
	var wait sync.WaitGroup
	for i := range callers {
		wait.Go(func() {
			for j := range times {
				l.call(names[(i+j)%len(names)], 1)
			}
		})
	}
	wait.Wait()
}

// Kernels of simulated machines. Their speeds have realistic proportions.
var (
	vector  = maker{stem: "fwd_vector", predicts: 10, takes: 10, begins: 2000}
	older   = maker{stem: "fwd_older", predicts: 17, takes: 17, begins: 2000}
	rows    = maker{stem: "decode_vector", predicts: 40, takes: 40, begins: 3000, rows: 32}
	wide    = maker{stem: "fwd_vector", predicts: 300, takes: 300, begins: 2000, rows: 32}
	pairs   = maker{stem: "fwd_pairs", predicts: 14, takes: 5.5, begins: 2000} // an untuned processor
	boxed   = maker{stem: "fwd_sandbox", predicts: 45, takes: 45, begins: 9000}
	plain   = maker{stem: "fwd_plain", predicts: 60, takes: 60, begins: 1000}
	boasts  = maker{stem: "fwd_boasts", predicts: 7, takes: 25, begins: 2000}
	back    = maker{stem: "bwd_vector", predicts: 12, takes: 12, begins: 4000}
	backOld = maker{stem: "bwd_older", predicts: 18, takes: 15, begins: 4000}
	gpuFwd  = maker{stem: "fwd_device", predicts: .2, takes: .2, begins: 40e3, began: 90e3, device: true}
)

// slowed returns the kernels on a machine slower by a factor than the fitted one.
func slowed(by float64, list ...maker) (out []maker) {
	for _, k := range list {
		k.takes, k.began = k.takes*by, k.begins*by
		out = append(out, k)
	}
	return out
}

var lives = []*life{
	{name: "layers", kernels: []maker{vector, boxed, plain}, program: func(l *life) {
		l.cold = 80 * time.Microsecond
		l.call("b1-h8-g8-n16-m16-d64-f32", 20)
		l.call("b1-h8-g8-n1024-m1024-d64-f32", 4)
		l.call("b1-h8-g8-n512-m512-d64-f32", 4)
		l.call("b1-h8-g8-n128-m128-d64-f32", 100)
	}},
	{name: "decode", kernels: []maker{rows, wide, plain}, program: func(l *life) { l.decode(128, 400, 4) }},
	{name: "prefill then decode", kernels: slowed(2, vector, older, maker{stem: "decode_vector", predicts: 40, takes: 40, begins: 3000, rows: 32}, boxed), program: func(l *life) {
		l.call("b1-h8-g2-n700-m700-d64-f32-causal", 4)
		l.decode(700, 900, 4)
	}},
	{name: "server of 2", kernels: []maker{vector, older, boxed, plain}, program: func(l *life) {
		l.serve(2, 100, "b1-h8-g8-n128-m128-d64-f32", "b1-h8-g8-n300-m300-d64-f32")
	}},
	{name: "server of 8", kernels: slowed(3, vector, older, boxed, plain), program: func(l *life) {
		l.serve(8, 40, "b1-h8-g8-n128-m128-d64-f32", "b1-h8-g8-n300-m300-d64-f32", "b1-h8-g8-n16-m16-d64-f32")
	}},
	{name: "server of 64", kernels: []maker{boasts, vector, plain}, program: func(l *life) {
		l.serve(64, 100, "b1-h8-g8-n128-m128-d64-f32", "b1-h8-g8-n200-m200-d64-f32")
	}},
	{name: "training", kernels: slowed(1.5, vector, older, boxed, back, backOld), program: func(l *life) {
		for range 50 {
			l.call("b4-h8-g8-n256-m256-d64-f32-causal", 2)
			l.grad("b4-h8-g8-n256-m256-d64-f32-causal", 2)
		}
	}},
	{name: "short and long in turns", kernels: slowed(.5, vector, older, boxed, plain), program: func(l *life) {
		for i := range 100 {
			l.cold = time.Duration(i%2) * 60 * time.Microsecond
			l.call("b1-h8-g8-n16-m16-d64-f32", 3)
			l.call("b1-h8-g8-n512-m512-d64-f32", 1)
		}
	}},
	{name: "the large call first", kernels: slowed(2, vector, older, pairs, boxed), program: func(l *life) {
		l.call("b1-h8-g8-n2048-m2048-d64-bf16", 5)
		l.call("b1-h8-g8-n256-m256-d64-bf16", 1000)
	}},
	{name: "busy for a while", kernels: []maker{vector, older, boxed, plain}, program: func(l *life) {
		for _, l.slow = range []float64{1, 3, 1, 6, 1.5} {
			l.call("b1-h8-g8-n256-m256-d64-f32", 60)
		}
	}},
	{name: "one boasts", kernels: []maker{boasts, vector, boxed, plain}, program: func(l *life) {
		l.call("b1-h8-g8-n200-m200-d64-f32", 3000)
	}},
	{name: "an unknown processor", kernels: slowed(1.4, vector, older, pairs, boxed, plain), program: func(l *life) {
		l.call("b1-h8-g8-n128-m128-d64-bf16", 3000)
		l.call("b1-h8-g8-n700-m700-d64-bf16", 300)
	}},
	{name: "a slow machine", kernels: slowed(3.5, vector, older, boxed, plain), program: func(l *life) {
		for range 20 {
			l.call("b1-h8-g8-n128-m128-d64-f32", 6)
			l.call("b1-h8-g8-n256-m256-d64-f32-causal", 6)
		}
	}},
	{name: "a device with a slow driver", kernels: append(slowed(1.3, vector, older, boxed), gpuFwd), program: func(l *life) {
		for range 30 {
			l.call("b1-h8-g8-n32-m32-d64-f32", 5)
			l.call("b1-h8-g8-n64-m64-d64-f32", 5)
			l.call("b1-h8-g8-n512-m512-d64-f32", 5)
		}
	}},
}

// live runs a life and returns its regret: the idle times of all calls plus the probes, over the
// best kernels' times. late is the worst single call of the second half.
func (l *life) live(t *testing.T, seed uint64, frozen bool) (regret, late float64) {
	synctest.Test(t, func(t *testing.T) {
		l.t, l.random, l.cold, l.slow, l.calls = t, rand.New(rand.NewPCG(seed, 1)), 0, 1, nil
		l.d = dispatch.New(half{l, false}, gpu{half{l, true}})
		if frozen {
			l.d = l.d.Frozen()
		}
		l.d = l.d.WithObserver(func(r dispatch.Ran) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.calls = append(l.calls, r)
		})
		l.program(l)
	})
	var took, best float64
	for i, r := range l.calls {
		this, least := l.truths(r)
		took, best = took+this+float64(r.Probed), best+least
		if i > len(l.calls)/2 {
			late = max(late, this/least)
		}
	}
	return took / best, late
}

// truths returns a call's time on an idle machine, and the best kernel's.
func (l *life) truths(r dispatch.Ran) (this, least float64) {
	least = math.Inf(1)
	for i := range l.kernels {
		k := &l.kernels[i]
		if k.pass() != r.Pass || k.rows > 0 && r.Problem.QLen > k.rows {
			continue
		}
		t := k.truth(r.Problem)
		least = min(least, t)
		if (half{l, k.device}).Name()+"/"+k.stem == r.Kernel {
			this = t
		}
	}
	return this, least
}

// Whatever the program and machine, calls take little more than with the best kernel for each.
func TestLives(t *testing.T) {
	runs, logs, n := uint64(3), 0.0, 0.0
	if testing.Short() {
		runs = 1
	}
	for _, l := range lives {
		for seed := range runs {
			regret, late := l.live(t, seed, false)
			require.LessOrEqual(t, regret, 1.10, "%s, seed %d", l.name, seed)
			require.LessOrEqual(t, late, 1.1, "%s, seed %d", l.name, seed)
			logs, n = logs+math.Log(regret), n+1
			if seed == 0 {
				none, worst := l.live(t, seed, true)
				t.Logf("%-28s regret %.3f, late %.2f; frozen %.3f, %.2f", l.name, regret, late, none, worst)
			}
		}
	}
	t.Logf("geometric mean %.4f", math.Exp(logs/n))
	require.LessOrEqual(t, math.Exp(logs/n), 1.03)
}
