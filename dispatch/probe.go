package dispatch

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit"
)

// Limits of a probe, and conditions for one.
const (
	probeCalls     = 4                      // timed calls of a kernel, after one untimed
	probeTime      = 150 * time.Microsecond // per call, as the fastest kernel predicts
	probeLimit     = 10 * time.Millisecond  // of all calls; no further round after that
	probeBytes     = 16 << 20               // of tensors, and of workspace
	contenderRatio = 1.5                    // own predictions up to this multiple of the fastest are probed
	probePayback   = 100                    // calls of the kind must have taken this multiple of a probe's time

	// Calls predicted to be shorter than shortCall are not probed.
	shortCall = 50 * time.Microsecond
)

// probe measures the possibly fastest kernels side by side, on a smaller problem of the same kind.
// It runs if one of them is unmeasured and calls of the kind, including this one, have taken
// probePayback times its cost. asked skips that condition. It returns its duration, 0 without a
// measurement. Calls during another probe do not wait for it.
func (d *Dispatcher) probe(ctx context.Context, x *plan, best *candidate, asked bool) time.Duration {
	m, ready := d.memory, func() bool {
		return asked || best.own+float64(x.spent.Load()) >= probePayback*float64(x.probeCost.Load())
	}
	if !ready() || ctx == nil || ctx.Err() != nil || !m.probing.TryLock() {
		return 0
	}
	defer m.probing.Unlock()
	start := time.Now()
	list := d.contenders(x)
	if list == nil {
		x.settled.Or(d.bit())
		return 0
	}
	p := m.shrink(x.Problem, x.Pass, list)
	call := p.Ask(x.Pass)
	if x.probeCost.Store(m.probeCost(call, list)); !ready() {
		return 0
	}
	for _, c := range list {
		m.probed[c.kernel][x.kind] = true
	}
	x.settled.Or(d.bit())
	probes := m.probes(list, call)
	if len(probes) < 2 {
		return 0
	}
	measure(ctx, probes)
	for _, y := range probes {
		if !y.failed && y.best > 0 {
			y.standing.set(math.Log(float64(y.best)/float64(y.own)), 1)
		}
	}
	m.version.Add(1)
	return time.Since(start)
}

// isSettled reports whether a plan needs no probe under d's choice. The dispatchers of a memory
// share its plans.
func (d *Dispatcher) isSettled(x *plan) bool { return x.settled.Load()&d.bit() != 0 }

func (d *Dispatcher) bit() uint64 { return 1 << min(d.id, 63) }

// probeCost returns the predicted nanoseconds of a probe.
func (m *memory) probeCost(call *flashkit.Call, list []*candidate) (sum int64) {
	for _, c := range list {
		sum += (1 + probeCalls) * int64(m.cost(c.kernel, call))
	}
	return sum
}

// contenders returns the kernels to probe, nil if all are measured. The caller holds probing.
func (d *Dispatcher) contenders(x *plan) (list []*candidate) {
	scores, unknown := d.scores(x, nil), false
	first := d.fastestOwn(x, scores, nil)
	for i := range x.candidates {
		c := &x.candidates[i]
		if d.eligible(c, scores, nil) && c.own <= contenderRatio*first.own {
			list = append(list, c)
			_, n := c.standing.log()
			unknown = unknown || n == 0 && !d.memory.probed[c.kernel][x.kind]
		}
	}
	if !unknown || len(list) < 2 {
		return nil
	}
	return list
}

// shrink returns a problem like p that the fastest candidate predicts to take at most probeTime, if
// possible. It reduces batches, rows, heads and keys.
func (m *memory) shrink(p flashkit.Problem, pass flashkit.Pass, list []*candidate) flashkit.Problem {
	const rows = 128 // enough to fill tiles
	group := p.Heads / p.KVHeads
	tooLong := func() bool {
		call := p.Ask(pass)
		return !slices.ContainsFunc(list, func(c *candidate) bool { return m.cost(c.kernel, call) <= probeTime })
	}
	for tooLong() {
		switch {
		case p.Batch > 1:
			p.Batch = (p.Batch + 1) / 2
		case p.QLen > rows:
			p.QLen, p.KVLen = max(p.QLen/2, rows), max(p.KVLen/2, min(p.KVLen, rows))
		case p.KVHeads > 2:
			p.KVHeads = (p.KVHeads + 1) / 2
			p.Heads = p.KVHeads * group
		case p.KVLen > rows:
			p.KVLen = max(p.KVLen/2, rows)
		default:
			return p
		}
	}
	return p
}

// A probe is the measurement of one kernel.
type probe struct {
	standing *factor
	own      time.Duration // the kernel's own prediction
	call     func(context.Context) error
	best     time.Duration
	failed   bool
}

// probes returns probes of the candidates that fit a problem, nil if that is too large.
func (m *memory) probes(list []*candidate, asked *flashkit.Call) (probes []*probe) {
	if len(list) < 2 || exampleBytes(asked.Problem) > probeBytes {
		return nil
	}
	args := example(asked)
	for _, c := range list {
		k := &m.kernels[c.kernel]
		if k.Needs != nil && k.Needs(asked).Host > probeBytes {
			continue // more than the tensors
		}
		if own := m.cost(c.kernel, asked); own > 0 && k.Fits(asked) == "" {
			call := func(ctx context.Context) error { return k.Compute(ctx, asked.Problem, args) }
			probes = append(probes, &probe{standing: c.standing, own: own, call: call})
		}
	}
	return probes
}

// measure calls the kernels in rotation, so that disturbances affect all alike, and keeps each
// kernel's shortest call. The first call may compile or load code. It counts only if a busy machine
// leaves no time for another. Errors are ignored: a later call of the kernel returns them.
func measure(ctx context.Context, probes []*probe) {
	start := time.Now()
	for round := range 1 + probeCalls {
		for _, x := range probes {
			begun := time.Now()
			if x.failed = x.failed || x.call(ctx) != nil; x.failed {
				continue
			}
			if took := time.Since(begun); round < 2 || took < x.best {
				x.best = took
			}
		}
		if time.Since(start) > probeLimit {
			return
		}
	}
}

// exampleBytes estimates the bytes of example's arguments, for either pass.
func exampleBytes(p flashkit.Problem) (sum float64) {
	for _, a := range flashkit.Arguments() {
		if a.Role(&p, flashkit.PassForward)|a.Role(&p, flashkit.PassBackward) == 0 {
			continue
		}
		bytes := float64(a.DType(&p).Size())
		for _, n := range a.Shape(&p) {
			bytes *= float64(n)
		}
		sum += bytes
	}
	if p.Page > 0 && p.KVLen > 0 { // keys fill the last page
		sum *= float64((p.KVLen-1)/p.Page+1) * float64(p.Page) / float64(p.KVLen)
	}
	return sum
}

// example returns arguments with nonzero numbers for a call.
func example(c *flashkit.Call) *flashkit.Args {
	args := flashkit.NewArgs(c.Problem, c.Pass)
	for _, a := range flashkit.Arguments() {
		t := a.Of(args)
		f, u, b := t.Float32s(), t.Uint16s(), t.Bools()
		for i := range f {
			f[i] = float32(i%13) / 16
		}
		for i := range u {
			u[i] = 0x3800 // 0.5 in f16, about 3e-5 in bf16
		}
		for i := range b {
			b[i] = i%8 != 0
		}
	}
	return args
}
