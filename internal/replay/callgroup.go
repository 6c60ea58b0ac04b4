package replay

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/bench"
)

// A callGroup is the calls of a trace that have the same pass, problem and conditions. If the
// number of keys grows from call to call, all calls of a group have numbers of keys of the same bit
// length.
type callGroup struct {
	step    *step            // a line of the trace that has calls of the group
	problem flashkit.Problem // has the most keys of the group
	fewest  int              // minimum keys
	calls   int
	spans   []stretch
	kernels []*timedKernel // kernels that ran or may be the fastest
	seconds float64        // duration of the calls
	first   time.Duration  // duration of the first call
	spent   time.Duration  // duration of the calls outside kernels
	idle    []time.Duration
	steady  *timedKernel // kernel of the latest call; row is the number of this kernel's consecutive calls so far
	row     int
}

// A stretch is n consecutive calls of one line of a trace: the line's calls [from, from+n), counted
// from 0. All n calls are in the same callGroup. Trace.order lists the lines in the order in which
// they run, with loops unrolled. at is an index into this list.
type stretch struct{ at, from, n int }

type timedKernel struct {
	name  string
	ran   int // calls in the trace
	late  int // calls after the trace's firstCalls
	row   int // maximum late calls in a row
	times []time.Duration
	out   bool // gets no more calls
}

// firstCalls is the number of calls at the start of a trace in which dispatch may still learn.
// Choices in later calls count as lasting.
const firstCalls = 10

func (t *Trace) groups() []*callGroup {
	type key struct {
		pass                               flashkit.Pass
		problem                            flashkit.Problem
		bucket, grow, callers, busy, touch int
		pause                              time.Duration
	}
	byKey, list := map[key]*callGroup{}, []*callGroup(nil)
	for at, i := range t.order {
		s := &t.steps[i]
		for from := 0; from < s.calls; {
			bucket, to := s.bucket(from), s.calls
			if s.grow > 0 {
				for to = from + 1; to < s.calls && s.bucket(to) == bucket; to++ {
				}
			}
			k := key{s.pass, s.problem, bucket, s.grow, s.callers, s.busy, s.touch, s.pause}
			if s.grow > 0 {
				k.problem.KVLen = 0
			}
			g := byKey[k]
			if g == nil {
				g = &callGroup{step: s, problem: s.at(to - 1), fewest: s.at(from).KVLen}
				byKey[k], list = g, append(list, g)
			}
			g.fewest = min(g.fewest, s.at(from).KVLen)
			g.problem.KVLen = max(g.problem.KVLen, s.at(to-1).KVLen)
			g.calls += to - from
			g.spans = append(g.spans, stretch{at, from, to - from})
			from = to
		}
	}
	return list
}

// name returns the group's problem, with the range of keys and the conditions.
func (g *callGroup) name() string {
	s := g.problem.String()
	if g.fewest < g.problem.KVLen {
		p := g.problem
		p.KVLen = g.fewest
		s = fmt.Sprintf("%s to m%d", p, g.problem.KVLen)
	}
	for _, x := range []struct {
		name string
		n    int
	}{{"callers", g.step.callers}, {"busy", g.step.busy}} {
		if x.n > 1 || x.name == "busy" && x.n > 0 {
			s += fmt.Sprintf(" %s=%d", x.name, x.n)
		}
	}
	return s
}

func (g *callGroup) kernel(name string) *timedKernel {
	i := slices.IndexFunc(g.kernels, func(k *timedKernel) bool { return k.name == name })
	if i < 0 {
		i = len(g.kernels)
		g.kernels = append(g.kernels, &timedKernel{name: name})
	}
	return g.kernels[i]
}

// tryRatio is the highest ratio of a kernel's predicted time to the shortest prediction at which
// the kernel is still timed.
const tryRatio = 6

// try adds to the group the kernels of d that fit and are predicted to be fast enough.
func (g *callGroup) try(d *dispatch.Dispatcher) {
	var fit []flashkit.Kernel
	for _, k := range d.Kernels() {
		if k.Pass == g.step.pass && k.Fits(g.problem.Ask(k.Pass)) == "" {
			fit = append(fit, k)
		}
	}
	if len(fit) == 0 {
		return
	}
	asked := g.problem.Ask(g.step.pass)
	best := slices.MinFunc(fit, func(a, b flashkit.Kernel) int { return cmp.Compare(a.Cost(asked), b.Cost(asked)) }).Cost(asked)
	for _, k := range fit {
		if k.Cost(g.problem.Ask(k.Pass)) <= tryRatio*best {
			g.kernel(k.Name)
		}
	}
}

func (k *timedKernel) seconds() float64 {
	if len(k.times) == 0 {
		return 0
	}
	return max(time.Nanosecond, bench.Median(slices.Clone(k.times))).Seconds()
}

// best returns the fastest kernel, or nil if no kernel was timed.
func (g *callGroup) best() (best *timedKernel) {
	for _, k := range g.kernels {
		if t := k.seconds(); t > 0 && (best == nil || t < best.seconds()) {
			best = k
		}
	}
	return best
}

func (g *callGroup) ratio(k *timedKernel) float64 {
	if best := g.best(); best != nil {
		return k.seconds() / best.seconds()
	}
	return 1
}

// sums returns two estimates of the time of all calls. took is computed from the medians of the
// kernels that ran, best from the median of the fastest kernel.
func (g *callGroup) sums() (took, best float64) {
	for _, k := range g.kernels {
		took += float64(k.ran) * k.seconds()
	}
	if b := g.best(); b != nil {
		best = float64(g.calls) * b.seconds()
	}
	return took, best
}

// worst returns the largest ratio of a kernel's median time to the fastest kernel's median time,
// over the kernels that ran in the trace.
func (g *callGroup) worst() float64 {
	ratio := 1.0
	for _, k := range g.kernels {
		if k.ran > 0 {
			ratio = max(ratio, g.ratio(k))
		}
	}
	return ratio
}

// overhead returns the seconds that dispatch needed for its choices. This is the time of the
// group's calls outside kernels, minus the usual time outside kernels in calls that name the
// kernel. Several callers spend this time simultaneously, so overhead divides the time by the
// number of callers.
func (g *callGroup) overhead() float64 {
	usual := time.Duration(0)
	if len(g.idle) > 0 {
		usual = bench.Median(slices.Clone(g.idle))
	}
	return max(0, (g.spent-time.Duration(g.calls)*usual).Seconds()) / float64(g.step.callers)
}
