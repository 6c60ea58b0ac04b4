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

// A memory is what a Dispatcher and its copies know of the speed of their kernels,
// and the plans of recent problems. Its size is bounded, and calls read and write
// it without a lock.
type memory struct {
	kernels   []flashkit.Kernel // their Cost is what is predicted
	costs     []func(*flashkit.Call) time.Duration
	rates     [][regimes]factor      // of each kernel, measured near the size
	standings [][kinds]factor        // of each kernel, beside others on any size
	spent     [2][kinds]atomic.Int64 // nanoseconds of calls that are not short, of each pass
	probing   sync.Mutex
	probed    [][kinds]bool // of each kernel, guarded by probing
	usable    func() []bool // by kernel: the machine lacks nothing for it

	kept profile // of backends that were not opened, guarded by probing

	version atomic.Uint64 // grows when something is learned
	chosen  []choice      // of dispatchers that share this, guarded by probing

	recent fastest.Cache[*plan]
}

// newMemory returns a memory that knows nothing of the kernels.
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

// whichUsable returns which kernels the machine lacks nothing for. It asks when the
// first problem comes, as asking may change the process.
func (m *memory) usableKernels() []bool {
	list := make([]bool, len(m.kernels))
	for i := range list {
		list[i] = missingReason(m.kernels[i]) == ""
	}
	return list
}

// copied returns a memory that knows what m knows now.
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
	c.kept = m.kept // whose maps nothing changes
	return c
}

// cost returns what the kernel itself predicts.
func (m *memory) cost(kernel int, c *flashkit.Call) time.Duration {
	if m.costs[kernel] == nil {
		return 0
	}
	return max(0, m.costs[kernel](c))
}

// predicted returns the predicted time of a kernel.
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

// scaled returns a time times a factor, given as logarithm.
func scaled(t time.Duration, log float64) time.Duration {
	return time.Duration(min(float64(t)*math.Exp(log), math.MaxInt64/2))
}

// subject returns the subject of a call with arguments.
func (d *Dispatcher) planKey(c *flashkit.Call) fastest.Subject {
	return fastest.Subject{Problem: c.Problem, Pass: c.Pass, Traits: c.Traits, Paired: d.isPaired(&c.Problem, c.Pass, !c.Args.LSE.IsZero())}
}

// asked returns the plan of a pass whose arguments are not known.
func (d *Dispatcher) planFor(p flashkit.Problem, s flashkit.Pass, lse bool) *plan {
	x := denseKey(p, s)
	x.Paired = d.isPaired(&p, s, lse)
	return d.memory.plan(x)
}

// dense returns the subject of a pass of a problem whose tensors are not known.
func denseKey(p flashkit.Problem, s flashkit.Pass) fastest.Subject {
	return fastest.Subject{Problem: p, Pass: s}
}

// A plan is what is known of a subject: the kernels that fit, in the order of the
// backends.
type plan struct {
	fastest.Subject
	kind       kind
	candidates []candidate
	spent      *atomic.Int64 // of its kind
	settled    atomic.Uint64 // there is nothing to probe: a bit for each choice's number
	probeCost  atomic.Int64  // nanoseconds that a probe is predicted to take, 0 before somebody asked
	best       atomic.Uint64 // the latest answer of Dispatcher.best
}

// A candidate is a kernel that fits a problem.
type candidate struct {
	kernel   int
	at       regime
	own      float64 // the kernel's own prediction, in nanoseconds
	log      float64 // of that
	rates    *[regimes]factor
	standing *factor      // of the problem's kind
	yields   bool         // a sandboxed kernel where one of vector instructions fits
	last     atomic.Int64 // what the latest call took, 0 before the first
}

// near returns what was measured of the kernel within a factor of four of the
// problem's size: the logarithm of its error, and whether it was.
func (c *candidate) near() (log float64, ok bool) {
	smaller, larger := c.at.neighbors()
	for _, at := range [...]regime{c.at, smaller, larger} {
		if log, n := c.rates[at].log(); n > 0 {
			return log, true
		}
	}
	return 0, false
}

// alike returns the subject whose plan serves s: of one with up to a sixteenth more
// keys, so that a program that generates text, or reads texts of any length, does not
// need a new plan for every call; and of one that decodes, whatever the lengths of its
// sequences, as KVLen is then the capacity of a cache that grows.
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

// plan returns the plan of a subject with a valid problem, and makes and keeps it if
// need be.
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
	x := m.newPlan(s) // at the end of what kernels take
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
