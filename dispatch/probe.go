package dispatch

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit"
)

// Limits of a probe, and the conditions under which a probe runs.
const (
	probeCalls     = 4                      // timed calls of a kernel, after one untimed call
	probeTime      = 150 * time.Microsecond // limit on the predicted time of the fastest kernel's call
	probeLimit     = 10 * time.Millisecond  // limit on the time of all calls; no further round begins after it
	probeBytes     = 16 << 20               // limit on the tensors' bytes, and on a kernel's workspace
	contenderRatio = 1.5                    // a kernel is probed if its own prediction is at most this multiple of the shortest prediction
	probePayback   = 100                    // a probe runs after calls of the kind have taken this multiple of the probe's time

	// Calls predicted to be shorter than shortCall are not probed.
	shortCall = 50 * time.Microsecond
)

// probe times, in turn, the kernels that may be fastest, on a smaller problem of the same kind.
// There are two conditions. First, one of these kernels must be unmeasured. Second, the calls of
// the kind, with the current call, must take at least probePayback times a probe's predicted time.
// If asked is true, only the first condition applies. probe returns the time that it took, or 0 if
// it measured nothing. If another probe is running, probe returns at once.
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

// isSettled reports whether a plan needs no probe by d. Each choice has its own bit in x.settled,
// because the dispatchers that share the plan admit different kernels.
func (d *Dispatcher) isSettled(x *plan) bool { return x.settled.Load()&d.bit() != 0 }

func (d *Dispatcher) bit() uint64 { return 1 << min(d.id, 63) }

// probeCost returns the predicted nanoseconds of a probe.
func (m *memory) probeCost(call *flashkit.Call, list []*candidate) (sum int64) {
	for _, c := range list {
		sum += (1 + probeCalls) * int64(m.cost(c.kernel, call))
	}
	return sum
}

// contenders returns the kernels to probe. If these kernels are fewer than two, or all are
// measured, the result is nil. The caller holds m.probing.
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

// shrink returns a problem of p's kind that one kernel of list predicts to take at most probeTime.
// It reduces batch, query rows, heads and keys. If no problem is short enough, shrink returns the
// smallest problem.
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

// A probe is the measurement of one kernel on the shrunken problem.
type probe struct {
	standing *factor
	own      time.Duration // the kernel's own prediction
	call     func(context.Context) error
	best     time.Duration
	failed   bool
}

// probes returns an entry of a probe for each candidate that can run the call, all on the same example
// tensors. It returns nil if there is only one candidate, or if the example tensors need more than
// probeBytes.
func (m *memory) probes(list []*candidate, asked *flashkit.Call) (probes []*probe) {
	if len(list) < 2 || exampleBytes(asked.Problem) > probeBytes {
		return nil
	}
	args := example(asked)
	for _, c := range list {
		k := &m.kernels[c.kernel]
		if k.Needs != nil && k.Needs(asked).Host > probeBytes {
			continue // the workspace may exceed the tensors
		}
		if own := m.cost(c.kernel, asked); own > 0 && k.Fits(asked) == "" {
			call := func(ctx context.Context) error { return k.Compute(ctx, asked.Problem, args) }
			probes = append(probes, &probe{standing: c.standing, own: own, call: call})
		}
	}
	return probes
}

// measure calls the kernels in rotation, so that disturbances affect all alike. It keeps the time
// of each kernel's shortest call. A kernel's first call may compile or load code, so this call
// counts only if probeLimit ends the loop after the first round. A kernel that fails is not called
// again. measure drops the error, because an ordinary call will return it.
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

// exampleBytes estimates the bytes of the tensors of both passes. example allocates the tensors of
// one pass.
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
	if p.Page > 0 && p.KVLen > 0 { // the last page of a sequence is stored whole
		sum *= float64((p.KVLen-1)/p.Page+1) * float64(p.Page) / float64(p.KVLen)
	}
	return sum
}

// example returns arguments for a call, filled with nonzero numbers.
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
	for i := range args.Ranges.Int32s() {
		if i%(2*c.Score.Ranges) != 0 { // the first range of a row has all keys
			args.Ranges.Int32s()[i] = int32(min(c.KVLen, math.MaxInt32))
		}
	}
	return args
}
