package dispatch

import (
	"math"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/fastest"
)

// A memory holds the measured speed of kernels and the plans of recent problems. A Dispatcher and
// its copies share a memory. The memory's size is bounded, and calls read it without locks.
type memory struct {
	kernels   []flashkit.Kernel // their Cost is dispatch's prediction
	costs     []func(*flashkit.Call) time.Duration
	rates     [][regimes]factor      // by kernel and regime: factors from the profile and Learn
	standings [][kinds]factor        // by kernel and kind: factors from probes and Learn, at any size
	spent     [2][kinds]atomic.Int64 // by pass and kind: total nanoseconds of calls that predict at least shortCall
	probing   sync.Mutex
	probed    [][kinds]bool // by kernel and kind: a probe was tried; guarded by probing
	usable    func() []bool // by kernel: the machine can run it

	kept profile // the loaded profile's figures of unopened backends; guarded by probing

	version atomic.Uint64 // incremented by each new measurement
	chosen  []choice      // the choices of all dispatchers that share this memory; guarded by probing

	recent fastest.Cache[*plan]
}

func newMemory(backends []flashkit.Backend) *memory {
	m := new(memory)
	for _, b := range backends {
		m.kernels = append(m.kernels, b.Kernels()...)
	}
	m.rates, m.standings, m.probed = make([][regimes]factor, len(m.kernels)), make([][kinds]factor, len(m.kernels)), make([][kinds]bool, len(m.kernels))
	for i := range m.kernels {
		k := &m.kernels[i]
		m.costs = append(m.costs, k.Cost)
		k.Cost = func(c *flashkit.Call) time.Duration { return m.predicted(i, c) }
	}
	m.usable = sync.OnceValue(m.usableKernels)
	return m
}

// usableKernels returns, for each kernel, whether the machine can run this kernel. It is called for
// the first problem and not at start, because Kernel.Missing may change the process: AMX needs a
// permission from Linux.
func (m *memory) usableKernels() []bool {
	list := make([]bool, len(m.kernels))
	for i := range list {
		list[i] = missingReason(m.kernels[i]) == ""
	}
	return list
}

// clone returns a memory with a copy of m's measurements.
func (m *memory) clone(backends []flashkit.Backend) *memory {
	c := newMemory(backends)
	for i := range m.rates {
		for r := range m.rates[i] {
			c.rates[i][r].bits.Store(m.rates[i][r].bits.Load())
		}
		for k := range m.standings[i] {
			c.standings[i][k].bits.Store(m.standings[i][k].bits.Load())
		}
	}
	m.probing.Lock()
	defer m.probing.Unlock()
	c.kept = m.kept // its maps are immutable
	return c
}

// cost returns the kernel's own prediction, or 0 if the kernel has none.
func (m *memory) cost(kernel int, c *flashkit.Call) time.Duration {
	if m.costs[kernel] == nil {
		return 0
	}
	return max(0, m.costs[kernel](c))
}

// predicted returns dispatch's prediction for a kernel: its own prediction times the expected
// factor.
func (m *memory) predicted(kernel int, call *flashkit.Call) time.Duration {
	if valid(call.Problem, call.Pass) != nil {
		return m.cost(kernel, call)
	}
	x := m.plan(fastest.Subject{Problem: call.Problem, Pass: call.Pass, Traits: call.Traits})
	a := x.anchor()
	for i := range x.candidates {
		if c := &x.candidates[i]; c.kernel == kernel {
			return scaled(m.cost(kernel, call), c.expectedFactor(&a))
		}
	}
	return m.cost(kernel, call)
}

// scaled returns t times e^log.
func scaled(t time.Duration, log float64) time.Duration {
	return time.Duration(min(float64(t)*math.Exp(log), math.MaxInt64/2))
}

// planKey returns the plan's key for a call with arguments.
func (d *Dispatcher) planKey(c *flashkit.Call) fastest.Subject {
	return fastest.Subject{Problem: c.Problem, Pass: c.Pass, Traits: c.Traits, Paired: d.isPaired(&c.Problem, c.Pass, !c.Args.LSE.IsZero())}
}

// planFor returns the plan of a pass whose arguments are not known. lse reports whether the call
// has Args.LSE.
func (d *Dispatcher) planFor(p flashkit.Problem, s flashkit.Pass, lse bool) *plan {
	x := denseKey(p, s)
	x.Paired = d.isPaired(&p, s, lse)
	return d.memory.plan(x)
}

// denseKey returns the plan's key for dense host tensors.
func denseKey(p flashkit.Problem, s flashkit.Pass) fastest.Subject {
	return fastest.Subject{Problem: p, Pass: s}
}

// A plan holds the kernels that fit a call, in the order of the backends. fastest.Subject is its
// key.
type plan struct {
	fastest.Subject
	kind       kind
	candidates []candidate
	spent      *atomic.Int64 // points to memory.spent of the plan's pass and kind
	settled    atomic.Uint64 // bit i is set if the dispatchers with choice number i have nothing left to probe
	probeCost  atomic.Int64  // predicted nanoseconds of a probe, 0 until computed
	best       atomic.Uint64 // cached result of Dispatcher.best
}

// A candidate is a kernel that fits a problem.
type candidate struct {
	kernel   int
	at       regime
	own      float64 // the kernel's own prediction, in nanoseconds
	log      float64 // natural logarithm of own
	rates    *[regimes]factor
	standing *factor      // the kernel's factor for the problem's kind
	yields   bool         // the kernel is sandboxed, and a vector kernel fits
	last     atomic.Int64 // nanoseconds of the latest call, 0 before the first
}

// near returns the logarithm of the factor that was measured on problems with about a fourth to
// four times the FLOPs of c's problem. ok is false if there is no such factor.
func (c *candidate) near() (log float64, ok bool) {
	smaller, larger := c.at.neighbors()
	for _, at := range [...]regime{c.at, smaller, larger} {
		if log, n := c.rates[at].log(); n > 0 {
			return log, true
		}
	}
	return 0, false
}

// roundKey rounds KVLen up to five significant bits, which adds at most a sixteenth more keys. Thus
// all lengths of a growing KV cache need few plans. For few query rows, as in decoding, roundKey
// also clears Traits.Load: KVLen is then the capacity of the cache, and the load changes with every
// token.
func roundKey(s fastest.Subject) fastest.Subject {
	const few, significant = 32, 5 // rows, and bits of the number of keys
	p := &s.Problem
	if p.QLen <= few {
		s.Traits.Load = 0
	}
	if drop := bits.Len(uint(max(0, p.KVLen-1))) - significant; drop > 0 {
		p.KVLen = ((p.KVLen-1)>>drop + 1) << drop
	}
	return s
}

// plan returns the plan of a key with a valid problem, from the cache if possible. The plan's key
// is roundKey(s), or s if no kernel fits the rounded problem.
func (m *memory) plan(s fastest.Subject) *plan {
	y := roundKey(s)
	if x, ok := m.recent.Find(&y); ok {
		return x
	}
	if y.Problem.Validate() == nil {
		if x := m.newPlan(y); len(x.candidates) > 0 {
			m.recent.Keep(&y, x)
			return x
		}
	}
	x := m.newPlan(s) // no kernel fits the rounded key
	m.recent.Keep(&s, x)
	return x
}

func (m *memory) newPlan(s fastest.Subject) *plan {
	at, call := regimeOf(s.Problem, s.Pass), s.Ask()
	x := &plan{Subject: s, kind: at.kind(), spent: &m.spent[s.Pass][at.kind()]}
	var room [32]int
	fit := room[:0]
	for i := range m.kernels {
		if k := &m.kernels[i]; k.Pass == s.Pass && m.usable()[i] && k.Fits(call) == "" {
			fit = append(fit, i)
		}
	}
	vector := slices.ContainsFunc(fit, func(i int) bool { return m.kernels[i].Code == flashkit.CodeVector })
	x.candidates = make([]candidate, len(fit))
	for j, i := range fit {
		own, c := float64(m.cost(i, call)), &x.candidates[j]
		c.kernel, c.at, c.own, c.log = i, at, own, math.Log(own)
		c.rates, c.standing = &m.rates[i], &m.standings[i][x.kind]
		c.yields = vector && m.kernels[i].Code == flashkit.CodeSandbox
	}
	return x
}
