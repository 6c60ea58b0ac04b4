package dispatch

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit"
)

// What a probe may take, and when it is worth that.
const (
	probeCalls     = 4                      // of a kernel that are timed, after one that is not
	probeTime      = 150 * time.Microsecond // of a call, as the fastest kernel predicts
	probeLimit     = 10 * time.Millisecond  // of all calls, should they take longer: no more after that
	probeBytes     = 16 << 20               // of tensors, and of workspace
	contenderRatio = 1.5                    // times the fastest prediction: what may be the fastest
	probePayback   = 100                    // times what a probe takes have calls of the kind taken before one

	// short is what a call takes, as the kernel predicts, that is not worth a probe.
	shortCall = 50 * time.Microsecond
)

// probe measures side by side, on a smaller problem of the same kind, the kernels
// that may be the fastest, if nothing is known of one of them and calls of the kind,
// with the one at hand, take a hundred times as long as that, so that it is no matter;
// asked for, it does not wait. It returns what it took, 0 if there was nothing to
// measure. Calls beside another probe go without.
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

// isSettled reports whether there is nothing to probe for a plan. What that is depends
// on the choice, and the dispatchers of a memory share its plans.
func (d *Dispatcher) isSettled(x *plan) bool { return x.settled.Load()&d.bit() != 0 }

func (d *Dispatcher) bit() uint64 { return 1 << min(d.id, 63) }

// price returns the nanoseconds that a probe is predicted to take.
func (m *memory) probeCost(call *flashkit.Call, list []*candidate) (sum int64) {
	for _, c := range list {
		sum += (1 + probeCalls) * int64(m.cost(c.kernel, call))
	}
	return sum
}

// contenders returns the kernels that a probe would measure, none if all of them
// are known. The caller holds probing.
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

// shrink returns a problem like p that the fastest of the candidates predicts to take
// probeTime at most, if one can be had by leaving out batches, rows, heads and keys.
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

// A probe is a kernel that is measured on a problem.
type probe struct {
	standing *factor
	own      time.Duration // what the kernel predicts
	call     func(context.Context) error
	best     time.Duration
	failed   bool
}

// probes returns probes of the candidates that fit a problem, none if that is too large.
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

// measure calls the kernels a few times, in turns, so that what else happens on
// the machine hits all alike, and keeps the fastest call of each. The first call may
// have to compile or load something, so it counts on a busy machine only, which
// leaves no time for another. An error is no news here: whoever runs the kernel will
// get it.
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

// exampleBytes returns about what the arguments of example take, for either pass.
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
	if p.Page > 0 && p.KVLen > 0 { // keys are there to the end of the last page
		sum *= float64((p.KVLen-1)/p.Page+1) * float64(p.Page) / float64(p.KVLen)
	}
	return sum
}

// example returns arguments with numbers for a call that was asked about.
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
