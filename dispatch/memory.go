package dispatch

import (
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A memory is what a Dispatcher and its copies know of the speed of their
// kernels: a rate for every kernel and regime, and the plans of recent problems.
// Its size is bounded, and calls read and write it without a lock.
type memory struct {
	kernels []flashkit.Kernel // their Cost is corrected
	owners  []int             // the backend of each
	costs   []func(flashkit.Problem) time.Duration
	rates   []rates // of each kernel
	probing sync.Mutex
	probed  [][3]bool // of each kernel and type, guarded by probing

	seed    maphash.Seed
	recent  [recentSets][recentWays]atomic.Pointer[plan]
	evicted atomic.Uint32
	calls   atomic.Uint64 // in progress, and begun in all
}

// What a call adds to memory.calls. It was alone if none is left when it ends and
// none has begun since it did.
const (
	callBegun    = 1<<32 + 1
	callEnded    = ^uint64(0)
	callsRunning = 1<<32 - 1
)

// The plans that are kept.
const (
	recentSets = 256
	recentWays = 4
)

// newMemory returns a memory that knows nothing of the kernels.
func newMemory(backends []flashkit.Backend) *memory {
	m := &memory{seed: maphash.MakeSeed()}
	for i, b := range backends {
		m.kernels = append(m.kernels, b.Kernels()...)
		for len(m.owners) < len(m.kernels) {
			m.owners = append(m.owners, i)
		}
	}
	m.rates, m.probed = make([]rates, len(m.kernels)), make([][3]bool, len(m.kernels))
	for i := range m.kernels {
		k := &m.kernels[i]
		m.costs = append(m.costs, k.Cost)
		if k.Fits == nil {
			k.Fits = func(flashkit.Problem) string { return "it does not say which problems it takes" }
		}
		pass := k.Pass()
		k.Cost = func(p flashkit.Problem) time.Duration {
			at := regimeOf(p, pass)
			return corrected(float64(m.cost(i, p)), m.rates[i][at].with(m.prior(i, at)))
		}
	}
	return m
}

// cost returns what the kernel itself predicts.
func (m *memory) cost(kernel int, p flashkit.Problem) time.Duration {
	if m.costs[kernel] == nil {
		return 0
	}
	return max(0, m.costs[kernel](p))
}

// prior returns what is to be expected of a kernel in a regime of which nothing is
// known, as a logarithm: what it did in other regimes or, if there is none, what
// the backend's other kernels of the pass did. Where these are slower than they
// predict, so will this one be. It is found once, and again after forget.
func (m *memory) prior(kernel int, at regime) float64 {
	found := &m.rates[kernel][at].prior
	if bits := found.Load(); bits != 0 {
		return math.Float64frombits(bits - 1) // so that 0 is no number
	}
	log := m.findPrior(kernel, at)
	found.Store(math.Float64bits(log) + 1)
	return log
}

func (m *memory) findPrior(kernel int, at regime) float64 {
	if log, ok := m.rates[kernel].prior(at); ok {
		return log
	}
	sum, n := 0.0, 0.0
	for i := range m.kernels {
		if m.owners[i] == m.owners[kernel] && m.kernels[i].Pass() == m.kernels[kernel].Pass() {
			if log, ok := m.rates[i].prior(at); ok {
				sum, n = sum+log, n+1
			}
		}
	}
	return sum / max(1, n)
}

// A plan is what is known of a pass of a problem: the kernels that fit, in the
// order of the backends.
type plan struct {
	problem    flashkit.Problem
	pass       flashkit.Pass
	candidates []candidate
}

// A candidate is a kernel that fits a problem.
type candidate struct {
	kernel int
	cost   float64      // the kernel's own prediction, in nanoseconds
	log    float64      // of the cost
	rate   *rate        // of the problem's regime
	prior  float64      // what the other regimes make one expect of it
	last   atomic.Int64 // what the latest call took, 0 before the first
}

// predict returns the logarithm of the predicted nanoseconds.
func (c *candidate) predict() float64 { return c.log + c.rate.with(c.prior) }

// predicted returns the predicted time.
func (c *candidate) predicted() time.Duration { return corrected(c.cost, c.rate.with(c.prior)) }

// corrected returns a prediction in nanoseconds times a factor, given as logarithm.
func corrected(cost, log float64) time.Duration {
	return time.Duration(min(cost*math.Exp(log), math.MaxInt64/2))
}

// took learns from a call. The first one on a problem fetches code, pages and
// workspace, and a call beside others shares the machine with them: neither says
// what the kernel can do.
func (c *candidate) took(t time.Duration, alone bool) {
	if c.last.Swap(max(1, int64(t))) != 0 && alone && c.cost > 0 {
		c.rate.learn(float64(t) / c.cost)
	}
}

// set returns where the plan of a problem may be.
func (m *memory) set(p flashkit.Problem, s flashkit.Pass) *[recentWays]atomic.Pointer[plan] {
	hash := maphash.Comparable(m.seed, p) + uint64(s)
	return &m.recent[hash%recentSets]
}

// find returns the plan of a problem, nil if it is not among the recent ones.
func (m *memory) find(p flashkit.Problem, s flashkit.Pass) *plan {
	set := m.set(p, s)
	for i := range set {
		if x := set[i].Load(); x != nil && x.pass == s && x.problem == p {
			return x
		}
	}
	return nil
}

// plan returns the plan of a valid problem, and makes and keeps it if need be.
func (m *memory) plan(p flashkit.Problem, s flashkit.Pass) *plan {
	x := m.find(p, s)
	if x == nil {
		x = m.newPlan(p, s)
		m.keep(x)
	}
	return x
}

func (m *memory) newPlan(p flashkit.Problem, s flashkit.Pass) *plan {
	x, at := &plan{problem: p, pass: s}, regimeOf(p, s)
	for i := range m.kernels {
		if k := &m.kernels[i]; k.Pass() == s && k.Fits(p) == "" {
			cost := float64(m.cost(i, p))
			x.candidates = append(x.candidates, candidate{kernel: i, cost: cost, log: math.Log(cost), rate: &m.rates[i][at], prior: m.prior(i, at)})
		}
	}
	return x
}

// keep puts a plan into an empty place of its set, or in the place of another.
func (m *memory) keep(x *plan) {
	set := m.set(x.problem, x.pass)
	for i := range set {
		if set[i].CompareAndSwap(nil, x) {
			return
		}
	}
	set[m.evicted.Add(1)%recentWays].Store(x)
}

// forget drops the plans and the priors, which are of an earlier state.
func (m *memory) forget() {
	for i := range m.rates {
		for r := range m.rates[i] {
			m.rates[i][r].prior.Store(0)
		}
	}
	for i := range m.recent {
		for j := range m.recent[i] {
			m.recent[i][j].Store(nil)
		}
	}
}
